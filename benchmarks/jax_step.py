"""The steps of jax in `dpsgd_step.py`: the paper's MNIST network, plain, per example, and by jax-privacy.

jax is no dependency of this project, and needs versions of its own. Give the benchmark a Python that has it:

    python -m venv FOLDER && FOLDER/bin/pip install jax jax-privacy
    python benchmarks/dpsgd_step.py --nets mnist --contenders sgd ours jax-sgd jax-loop jax-privacy \
        --jax-python FOLDER/bin/python --threads 1

The whole step is compiled as one function. Its noise is jax's own: neither secret nor exact. `jax-vmap` takes all
examples at once, which makes XLA compute a convolution per example by its slow kernel for processors; `jax-loop` takes
one after the other (`lax.scan`), and so does `jax-privacy` (`clipped_grad` with microbatch_size=1).
"""

__all__ = ["make_jax_step"]

from collections.abc import Callable
from typing import Any

NOISE_MULTIPLIER, MAX_GRAD_NORM, LEARNING_RATE = 1.0, 1.0, 0.05
SHAPES = {"conv1": (5, 5, 1, 32), "conv2": (5, 5, 32, 64), "dense1": (3136, 256), "dense2": (256, 10)}


def make_jax_step(contender: str, net: str, batch: int) -> Callable[[], None]:
    """Return a function that does one training step on fixed random data.

    Raises: ImportError where this Python has no jax (or no jax-privacy); NotImplementedError for another network.
    """
    import jax
    from jax import numpy as jnp

    if net != "mnist":
        raise NotImplementedError("skipped: the steps of jax are written for the paper's MNIST network")
    keys = jax.random.split(jax.random.key(0), 8)
    fan_in = {name: shape[0] if len(shape) == 2 else shape[0] * shape[1] * shape[2] for name, shape in SHAPES.items()}
    weights = {
        name: (jax.random.normal(key, shape) * fan_in[name] ** -0.5, jnp.zeros(shape[-1]))
        for key, (name, shape) in zip(keys, SHAPES.items(), strict=False)
    }
    inputs = jax.random.uniform(keys[4], (batch, 28, 28, 1))
    targets = jax.random.randint(keys[5], (batch,), 0, 10)

    def forward(parameters: Any, x: Any) -> Any:
        for name in ("conv1", "conv2"):
            weight, bias = parameters[name]
            x = jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.lax.reduce_window(jax.nn.relu(x + bias), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = x.reshape(len(x), -1)
        for name in ("dense1", "dense2"):
            weight, bias = parameters[name]
            x = x @ weight + bias
            x = jax.nn.relu(x) if name == "dense1" else x
        return x

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        """Return the mean cross-entropy of a batch."""
        logs = jax.nn.log_softmax(forward(parameters, x))
        return -jnp.take_along_axis(logs, y[:, None], axis=1).mean()

    def plain(parameters: Any, x: Any, y: Any) -> Any:
        return jax.tree.map(lambda g: g * batch, jax.grad(loss)(parameters, x, y))

    def clipped(parameters: Any, x: Any, y: Any) -> Any:
        """Return the clipped gradient of one example."""
        gradient = jax.grad(loss)(parameters, x[None], y[None])
        norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradient)))
        return jax.tree.map(lambda g: g * jnp.minimum(1.0, MAX_GRAD_NORM / norm), gradient)

    def by_vmap(parameters: Any, x: Any, y: Any) -> Any:
        each = jax.vmap(clipped, in_axes=(None, 0, 0))(parameters, x, y)
        return jax.tree.map(lambda g: g.sum(axis=0), each)

    def by_loop(parameters: Any, x: Any, y: Any) -> Any:
        def add(total: Any, example: Any) -> Any:
            return jax.tree.map(jnp.add, total, clipped(parameters, *example)), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, parameters), (x, y))[0]

    def by_library() -> Any:
        import jax_privacy

        # Each example is a batch of one, as `loss` takes batches; one at a time is its fastest way here.
        return jax_privacy.clipped_grad(
            loss, l2_clip_norm=MAX_GRAD_NORM, batch_argnums=(1, 2), keep_batch_dim=True, microbatch_size=1
        )

    ways = {"jax-sgd": lambda: plain, "jax-vmap": lambda: by_vmap, "jax-loop": lambda: by_loop}
    clipped_sum = (ways | {"jax-privacy": by_library})[contender]()
    std = 0.0 if contender == "jax-sgd" else NOISE_MULTIPLIER * MAX_GRAD_NORM

    @jax.jit
    def update(parameters: Any, key: Any) -> Any:
        key, *own = jax.random.split(key, 1 + len(jax.tree.leaves(parameters)))
        leaves, tree = jax.tree.flatten(clipped_sum(parameters, inputs, targets))
        if std:
            leaves = [g + std * jax.random.normal(k, g.shape) for g, k in zip(leaves, own, strict=True)]
        moved = jax.tree.map(lambda w, g: w - LEARNING_RATE / batch * g, parameters, jax.tree.unflatten(tree, leaves))
        return moved, key

    state = [weights, keys[6]]

    def step() -> None:
        state[:] = update(*state)
        jax.block_until_ready(state[0])

    return step
