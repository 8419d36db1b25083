"""Networks for tests of interval and linear bounds, with the truth about small ones."""

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import nn

from securesgd.certificates.interval.boxes import activation_boxes, input_box, margin_bounds
from securesgd.certificates.interval.linear_bounds import linear_margin_bounds
from securesgd.certificates.interval.prepared import prepare


class Residual(nn.Module):
    """A convolution around which its input goes, after a normalisation with a negative scale."""

    def __init__(self, activation):
        super().__init__()
        self.register_buffer("scale", torch.tensor([-2.0, 0.7]).reshape(2, 1, 1))
        self.first, self.second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding="same", groups=2)
        self.activation, self.head = activation, nn.Linear(2 * 2 * 2, 3)

    def forward(self, x):
        x = (x - 0.3) * self.scale / 1.7
        h = x + self.second(self.activation(self.first(x)))
        h = h + x
        return 0.5 - self.head(nn.functional.avg_pool2d(self.activation(h), 2).flatten(1))


def pooled(activation):
    return nn.Sequential(
        nn.Conv2d(2, 4, 2), activation, nn.MaxPool2d(2, 1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)
    )


def dense(activation):
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 8), activation, nn.Linear(8, 6), activation, nn.Linear(6, 3))


def seeded(make, *arguments, dtype=torch.float32, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make(*arguments).to(dtype).eval()


@torch.no_grad()
def bounds_of(network, x, radius, y, *, way="interval", input_range=None, flat_below=False):
    """Return the lower bounds of all margins, own class infinite."""
    net, _ = prepare(network, tuple(x.shape[1:]))
    steps = activation_boxes(
        net, input_box(net, x, torch.full_like(x, radius, dtype=torch.float64), input_range), errors=way == "linear"
    )
    if way == "interval":
        return margin_bounds(net, steps, y)
    rivals = torch.arange(net.classes).expand(len(y), -1)
    bounds = linear_margin_bounds(net, steps, y, rivals, flat_below=flat_below)
    return bounds.scatter(1, y[:, None], torch.inf)


@torch.no_grad()
def boxes_of(network, x, reach, *, errors=False):
    """Return graph and ends of the box of every operation that has one."""
    net, _ = prepare(network, tuple(x.shape[1:]))
    return net.graph, [step.box.ends() for step in activation_boxes(net, input_box(net, x, reach, None), errors=errors)]


def values_of(graph, x):
    """Return what every operation computes."""
    values = [x]
    for operation in graph.operations[1:]:
        values.append(operation.run(*(values[i] for i in operation.inputs)))
    return values


def points_in_box(x, radius, count, generator):
    """Return points within the radius of one input, half of them corners."""
    shape = (count, *x.shape[1:])
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
    uniform[: count // 2] = uniform[: count // 2].sign()
    return x.double() + radius * uniform


def smallest_margin(network, x, radius, y, j):
    """Return the true minimum of z_y − z_j over the box of Linear–ReLU–…–Linear, by mixed-integer programming."""
    layers = [
        (m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in network if hasattr(m, "weight")
    ]
    low, high = x.double().numpy() - radius, x.double().numpy() + radius
    lower, upper, integral = list(low), list(high), [0] * len(low)
    rows, least, most = [], [], []
    at = np.arange(len(low))
    for weight, bias in layers[:-1]:
        m, rho = (low + high) / 2, (high - low) / 2
        z_low, z_high = weight @ m + bias - np.abs(weight) @ rho, weight @ m + bias + np.abs(weight) @ rho
        new = []
        for i in range(len(bias)):
            h, on = len(lower), len(lower) + 1
            lower += [0.0, 0.0]
            upper += [max(z_high[i], 0.0), 1.0]
            integral += [0, 1]
            coupled = dict(zip(at, -weight[i], strict=True))
            rows += [coupled | {h: 1.0}, coupled | {h: 1.0, on: -z_low[i]}, {h: 1.0, on: -z_high[i]}]
            least += [bias[i], -np.inf, -np.inf]  # h >= z; h <= z − z_low(1 − on); h <= z_high·on
            most += [np.inf, bias[i] - z_low[i], 0.0]
            new.append(h)
        at, low, high = np.array(new), np.maximum(z_low, 0), np.maximum(z_high, 0)
    matrix = np.zeros((len(rows), len(lower)))
    for row, entries in zip(matrix, rows, strict=True):
        row[list(entries)] = list(entries.values())
    cost = np.zeros(len(lower))
    weight, bias = layers[-1]
    cost[at] = weight[y] - weight[j]
    solved = milp(
        cost, constraints=LinearConstraint(matrix, least, most), bounds=Bounds(lower, upper), integrality=integral
    )
    assert solved.success
    return solved.fun + bias[y] - bias[j]
