"""Networks that do something with their input beside one product: each in a way of its own."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class Net(nn.Module):
    """Linear, tanh, linear; `prepare` is what a subclass does with its input."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)
        self.on, self.calls, self.threshold = True, 0, 0.5
        self.register_buffer("limit", torch.tensor(1.0))

    def forward(self, x):
        return self.last(torch.tanh(self.first(self.prepare(x))))

    def prepare(self, x):
        return x


class Scaled(Net):
    def prepare(self, x):
        return x / 255 if x.max() > self.limit else x


class Inverted(Net):
    def prepare(self, x):
        return 1 - x if x.mean() > 0.5 else x


class ByItem(Net):
    def prepare(self, x):
        return 1 - x if x[0, 0].item() > 0.999 else x


class ByList(Net):
    def prepare(self, x):
        return 1 - x if sum(x.flatten().tolist()) > 5.9 * len(x) else x


class ByNumpy(Net):
    def prepare(self, x):
        return 1 - x if x.detach().numpy().max() > 1 else x


class ByEqual(Net):
    def prepare(self, x):
        return 1 - x if torch.equal(x, torch.full_like(x, 0.25)) else x


class ByWhere(Net):
    def prepare(self, x):
        return torch.where(x > 1, x / 255, x)


class Clamped(Net):
    def prepare(self, x):
        return x.clamp(-1000, 1000)


class Laundered(Net):
    """The values leave torch's sight as a plain tensor first."""

    def prepare(self, x):
        plain = torch.tensor(x)
        return 1 - x if plain.max() > 1 else x


class Unwrapped(Net):
    def prepare(self, x):
        return 1 - x if max(x.as_subclass(torch.Tensor).flatten().tolist()) > 1e9 else x


class ByThread(Net):
    """Decides in another thread."""

    def prepare(self, x):
        with ThreadPoolExecutor(1) as pool:
            return 1 - x if pool.submit(lambda: sum(x.flatten().tolist()) > 1e9).result() else x


class InPlace(Net):
    def prepare(self, x):
        return x.clone().clamp_(-1000, 1000)


class Kept(Net):
    """The input goes around the layer by way of a buffer."""

    def forward(self, x):
        self.limit.copy_((x.mean() > 0.9).float() + 1)
        return self.last(torch.tanh(self.first(x))) * self.limit


class Swallowed(Net):
    def prepare(self, x):
        try:
            return 1 - x if x.max() > 1 else x
        except Exception:
            return x


class Hidden(Net):
    """Reads raw memory, which torch does not see: found by comparing at the inputs themselves."""

    def prepare(self, x):
        x = x.contiguous()
        with torch._C.DisableTorchFunction():
            address = x.data_ptr()
        first = ctypes.c_float.from_address(address).value
        return x.clone() if 0.9 < first < 0.96 else x


class ByGradMode(Net):
    def prepare(self, x):
        return x if torch.is_grad_enabled() else 0.5 * x


class FrugalByMode(Net):
    def prepare(self, x):
        return 1 - x if torch.is_inference_mode_enabled() and x.max() > 1e9 else x


class ByBatch(Net):
    def prepare(self, x):
        return x / 2 if x.shape[0] == 1 else x


class Later(Net):
    """Nothing happens on construction; then a flag, a buffer or a threshold changes."""

    def __init__(self):
        super().__init__()
        self.on = False

    def prepare(self, x):
        return 1 - x if self.on and x.mean() > 0.5 else x


class Thresholded(Net):
    """Compares with NaN until somebody sets the threshold."""

    def __init__(self):
        super().__init__()
        self.threshold = float("nan")

    def prepare(self, x):
        return x * (1 + 254 * float(self.threshold < 1))


class Counting(Net):
    def prepare(self, x):
        self.calls += 1
        return x if self.calls < 1000 else 1 - x


class Listing(Net):
    def __init__(self):
        super().__init__()
        self.seen = []

    def prepare(self, x):
        self.seen.append(len(x))
        return x if len(self.seen) < 1000 else 1 - x
