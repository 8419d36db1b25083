"""The pictures of docs/concepts, drawn by the package's own code on problems small enough to see: `make pictures`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Polygon, Rectangle
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import securesgd as ss
from securesgd.certificates.interval.boxes import activation_boxes, input_box
from securesgd.certificates.interval.prepared import prepare
from securesgd.certificates.interval.radius import interval_radii
from securesgd.clipping.engine import ClippingEngine
from securesgd.models.redistribution import prior, uniform
from securesgd.privacy import SampledGaussianSteps, epsilon_spent
from securesgd.report.plots import write_picture
from securesgd.theory import clopper_pearson_lower, sensitivity, whitened_radius
from securesgd.theory.audit import GaussianTradeoff, gaussian_mu

FOLDER = Path(__file__).parents[1] / "concepts" / "pictures"
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
REGIONS = ListedColormap(["#cfe3f1", "#f9d9c4"])


def one_step() -> Figure:
    """One step of DP-SGD on a model of two weights: gradients, clipped gradients, their sum and its noise."""
    generator = torch.Generator().manual_seed(3)
    limit, noise_multiplier = 1.0, 1.0
    inputs = torch.randn(24, 2, generator=generator) * torch.tensor([1.3, 0.8]) + torch.tensor([0.9, 0.4])
    targets = torch.zeros(24)
    inputs[0] = torch.tensor([3.4, 2.6])  # an example that stands out
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return -nn.functional.logsigmoid(-2 * outputs[:, 0]) + 0 * targets

    def summed(max_norm: float, rows: slice) -> np.ndarray:
        engine = ClippingEngine(model, max_norm)
        return engine.clipped_sum(inputs[rows], targets[rows], loss).gradients["weight"].numpy()[0]

    each = [slice(i, i + 1) for i in range(len(inputs))]
    raw, clipped = (np.array([summed(norm, row) for row in each]) for norm in (1e3, limit))
    total, without = summed(limit, slice(0, None)), summed(limit, slice(1, None))
    figure, panels = _panels(3, "one example's gradient", "clipped to length 1", "their sum, and the noise")
    for axes, arrows, reach in ((panels[0], raw, 4.4), (panels[1], clipped, 1.35)):
        for i, (x, y) in enumerate(arrows):
            axes.annotate("", (x, y), (0, 0), arrowprops={
                "arrowstyle": "-|>", "color": ORANGE if i == 0 else BLUE, "alpha": 1.0 if i == 0 else 0.55,
                "linewidth": 2.2 if i == 0 else 1.0, "shrinkA": 0, "shrinkB": 0})  # fmt: skip
        axes.add_patch(Circle((0, 0), limit, fill=False, linestyle="--", color=GREY))
        axes.set(xlim=(-0.85 * reach, reach), ylim=(-0.85 * reach, 0.85 * reach), aspect="equal")
    rng = np.random.default_rng(0)
    cloud = total + noise_multiplier * limit * rng.normal(size=(400, 2))
    panels[2].scatter(*cloud.T, s=5, color=GREY, alpha=0.5, linewidths=0, label="what may be released")
    panels[2].plot(*total, "o", color=ORANGE, label="sum with the orange example")
    panels[2].plot(*without, "o", color=BLUE, label="sum without it")
    panels[2].set(aspect="equal", xlim=(total[0] - 4.2, total[0] + 3.6), ylim=(total[1] - 3, total[1] + 5))
    panels[2].legend(loc="upper left", fontsize=8, frameon=False)
    return figure


def budget() -> Figure:
    """Epsilon against steps for several noise multipliers, and what an epsilon leaves an attacker."""
    figure, panels = _panels(2)
    steps = [1, 10, 30, 100, 200, 400, 700, 1000]
    for noise, colour in ((0.8, ORANGE), (1.0, BLUE), (1.5, GREEN)):
        spent = [
            epsilon_spent([SampledGaussianSteps(noise_multiplier=noise, sampling_rate=0.01, steps=n)], 1e-5)
            for n in steps
        ]
        panels[0].plot(steps, spent, "o-", color=colour, markersize=3, label=f"noise multiplier {noise:g}")
    panels[0].set(xlabel="steps, 1 % of the examples in each", ylabel="ε spent, at δ = 10⁻⁵", ylim=(0, None))
    panels[0].legend(frameon=False, fontsize=8)
    false = np.linspace(1e-4, 1, 400)
    for epsilon, colour in ((8.0, ORANGE), (3.0, BLUE), (1.0, GREEN)):
        curve = GaussianTradeoff(gaussian_mu(epsilon, 1e-5))
        found = [1 - curve.least(1 - rate) for rate in false]
        panels[1].plot(false, found, color=colour, label=f"ε = {epsilon:g}")
    panels[1].plot([0, 1], [0, 1], "--", color=GREY, label="guessing")
    panels[1].set(xlabel="share of non-members accused", ylabel="share of members found, at most", xlim=(0, 1))
    panels[1].set(ylim=(0, 1.02), aspect="equal")
    panels[1].legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def smoothing() -> Figure:
    """A network in the plane, the same by votes under noise, and proven radii around some points."""
    network = _plane_network()
    noisy = ss.NoisyNetwork(network, (2,), norm="l2", radius_per_std=0.08).eval()
    figure, panels = _panels(3, "the network", "votes at one point", "the smoothed network, proven radii")
    grid, side = _grid(121)
    panels[0].imshow(_classes(network, grid).reshape(side, side), **_AREA)
    point = torch.tensor([[0.38, 0.62]])
    torch.manual_seed(0)
    cloud = point + 0.08 * torch.randn(300, 2)
    votes = _classes(network, cloud)
    panels[1].imshow(_classes(network, grid).reshape(side, side), **_AREA)
    for label, colour in ((0, BLUE), (1, ORANGE)):
        share = np.mean(votes == label)
        panels[1].scatter(*cloud[votes == label].T, s=7, color=colour, linewidths=0, label=f"{share:.0%} of the votes")
    panels[1].plot(*point[0], "k+", markersize=12, markeredgewidth=2)
    panels[1].legend(loc="lower right", fontsize=8)
    coarse, coarse_side = _grid(49)
    with torch.no_grad():
        passes = [_classes(network, coarse + 0.08 * torch.randn(coarse.shape)) for _ in range(400)]
    panels[2].imshow((np.mean(passes, axis=0) > 0.5).reshape(coarse_side, coarse_side), **_AREA)
    points = torch.tensor([[0.38, 0.62], [0.2, 0.8], [0.75, 0.75], [0.6, 0.35], [0.85, 0.2], [0.15, 0.3]])
    proven = ss.certify(noisy, points, ss.CertifySettings(norm="l2", draws=10_000, seed=0))
    for place, label, radius in zip(points, proven.prediction, proven.radius["tight"], strict=True):
        colour = (BLUE, ORANGE)[int(label)]
        panels[2].add_patch(Circle(place.tolist(), float(radius), fill=False, color=colour, linewidth=1.6))
        panels[2].plot(*place, ".", color=colour)
    for axes in panels:
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
    return figure


def votes() -> Figure:
    """The radius that a share of votes proves, in standard deviations of the noise, by the number of draws."""
    figure, (axes,) = _panels(1)
    share = np.linspace(0.5, 1, 501)
    axes.plot(share[:-1], whitened_radius(share[:-1], 1 - share[:-1]), "--", color=GREY, label="if p were known")
    for draws, colour in ((10_000, BLUE), (1_000, GREEN), (100, ORANGE)):
        p = clopper_pearson_lower(np.floor(share * draws), draws, 0.001)
        radius = np.where(p > 0.5, whitened_radius(np.maximum(p, 0.5), 1 - np.maximum(p, 0.5)), 0)
        axes.plot(share, radius, color=colour, label=f"{draws:,} draws")
    axes.set(xlabel="share of the votes for the winning class", ylabel="proven radius · Δ", xlim=(0.5, 1), ylim=(0, 4))
    axes.legend(frameon=False, fontsize=8)
    return figure


def reach() -> Figure:
    """Δ of a layer with two inputs and two units: where changes of size 1 lead, with even and with uneven noise."""
    weights = np.array([[1.0, 0.8], [0.2, -0.5]])
    corners = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]])
    uneven = np.array([0.8, 0.2])
    figure, panels = _panels(3, "changes of the input", "the layer, even noise", "the layer, uneven noise")
    panels[0].add_patch(Rectangle((-1, -1), 2, 2, color=BLUE, alpha=0.25))
    panels[0].text(0, 0, "each number\nby at most 1\n(l_inf)", ha="center", va="center", fontsize=9)
    for axes, r in zip(panels[1:], (np.array([0.5, 0.5]), uneven), strict=True):
        whitened = weights / np.sqrt(2 * r)[:, None]  # in standard deviations of each unit's noise
        delta = sensitivity(weights, "linf", r)
        worst = whitened @ delta.direction
        axes.add_patch(Polygon(corners @ whitened.T, color=BLUE, alpha=0.25))
        for size in (1, 2):
            axes.add_patch(Circle((0, 0), size, fill=False, color=GREY, linestyle=":"))
        axes.annotate("", worst, (0, 0), arrowprops={"arrowstyle": "-|>", "color": ORANGE, "linewidth": 2})
        axes.text(0.03, 0.04, f"Δ = {delta.upper:.2f}", transform=axes.transAxes, color=ORANGE, fontsize=11)
    for axes in panels:
        axes.set(xlim=(-2.3, 2.3), ylim=(-2.3, 2.3), aspect="equal", xticks=[], yticks=[])
    return figure


def shares() -> Figure:
    """The same image under even noise and under noise of the same Δ that grows towards the border."""
    image = ss.load_data("digits").test_inputs[3]
    figure = Figure(figsize=(9, 1.9), layout="constrained")
    panels = figure.subplots(1, 5)
    panels[0].imshow(image[0], cmap="gray", vmin=0, vmax=1)
    panels[0].set_title("image", fontsize=9)
    rng = np.random.default_rng(5)
    for place, (name, way) in enumerate((("even", uniform), ("by prior", prior))):
        r = way((1, 8, 8))
        delta = sensitivity(np.eye(64), "linf", r.per_unit).upper
        std = r.std(0.04 * delta).reshape(8, 8)  # one standard deviation is worth l_inf 0.04 in both
        shown = panels[1 + 2 * place].imshow(std, cmap="viridis", vmin=0, vmax=1.3)
        panels[1 + 2 * place].set_title(f"noise, {name}", fontsize=9)
        panels[2 + 2 * place].imshow(image[0].numpy() + std * rng.normal(size=(8, 8)), cmap="gray", vmin=0, vmax=1)
        panels[2 + 2 * place].set_title(f"a noisy pass, {name}", fontsize=9)
    figure.colorbar(shown, ax=list(panels), shrink=0.75, label="standard deviation")
    for axes in panels:
        axes.set(xticks=[], yticks=[])
    return figure


def boxes() -> Figure:
    """A box around an input through a network of two hidden units: what comes out, and the box that encloses it."""
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, 0.7], [-0.6, 1.0]]))
        network[0].bias.copy_(torch.tensor([-0.85, 0.05]))
        network[2].weight.copy_(torch.tensor([[1.0, -0.3], [-0.4, 0.7]]))
        network[2].bias.copy_(torch.tensor([0.36, 0.0]))
    x, radius = torch.tensor([[0.62, 0.5]]), 0.1
    net, _ = prepare(network, (2,))
    steps = activation_boxes(net, input_box(net, x, torch.full_like(x, radius), (0.0, 1.0)), errors=True)
    line = torch.linspace(-radius, radius, 60)
    points = x + torch.stack([part.flatten() for part in torch.meshgrid(line, line, indexing="ij")], dim=1)
    with torch.no_grad():
        stages = [points, network[0](points), network[:2](points), network(points)]
    names = ("input ± 0.1", "after the first layer", "after ReLU", "the two scores")
    figure, panels = _panels(4, *names)
    for axes, cloud, step in zip(panels, stages, steps, strict=True):
        lower, upper = (end[0].detach().numpy() for end in step.box.ends())
        axes.scatter(*cloud.T, s=1.5, color=BLUE, linewidths=0)
        width = upper - lower
        axes.add_patch(Rectangle(lower, *width, fill=False, color=ORANGE, linewidth=1.6))
        middle, size = (lower + upper) / 2, 0.75 * width.max()
        axes.set(xlim=(middle[0] - size, middle[0] + size), ylim=(middle[1] - size, middle[1] + size), aspect="equal")
        axes.tick_params(labelsize=7)
    low, high = panels[3].get_xlim()
    panels[3].plot([low, high], [low, high], "--", color=GREY)
    proven = float(interval_radii(network, x).interval[0])
    panels[3].set_xlabel(f"below the line class 0 wins;\nproven by boxes up to {proven:.4f}", fontsize=8)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "one-step": one_step, "budget": budget, "smoothing": smoothing, "votes": votes, "reach": reach, "shares": shares,
    "boxes": boxes,
}  # fmt: skip


def draw(folder: Path = FOLDER) -> None:
    """Draw all pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        write_picture(picture(), folder / f"{name}.png")


_AREA = {"origin": "lower", "extent": (0, 1, 0, 1), "cmap": REGIONS, "vmin": 0, "vmax": 1, "aspect": "equal"}


def _panels(count: int, *titles: str) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(9.6 if count > 1 else 8.0, 3.4), layout="constrained")
    panels = [figure.add_subplot(1, count, place + 1) for place in range(count)]
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title(title, fontsize=10)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _plane_network() -> nn.Module:
    """Return a network that learned a curved border in the plane, with a spike at a few odd examples."""
    torch.manual_seed(1)
    points = torch.rand(600, 2)
    labels = (points[:, 1] < 0.5 + 0.25 * torch.sin(6.3 * points[:, 0])).long()
    labels[((points - torch.tensor([0.42, 0.72])) ** 2).sum(1) < 0.004] = 1
    network = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(600):
        optimizer.zero_grad()
        cross_entropy(network(points), labels).backward()
        optimizer.step()
    return network.eval()


def _grid(side: int) -> tuple[Tensor, int]:
    line = torch.linspace(0, 1, side)
    y, x = torch.meshgrid(line, line, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], dim=1), side


@torch.no_grad()
def _classes(network: nn.Module, points: Tensor) -> np.ndarray:
    return network(points).argmax(1).numpy()


if __name__ == "__main__":
    draw()
