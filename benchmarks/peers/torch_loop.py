"""Peer: a plain loop over clients in PyTorch, one nn.LSTM and nn.Linear step after the other.

    python torch_loop.py FOLDER

Windows are cut from a tensor of features that lies on the device. The number of threads is the
better one of 1 and all.
"""

import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from given import TRIAL, Given, answer, measure, read_work, say_adam, say_steps, shorten

TORCH_NAMES = {
    f"lstm.{name}": f"lstm.{name}_l0" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
}
"""Names of params that differ in PyTorch."""


def make_model(sizes: dict[str, Any]) -> Any:
    """The LSTM and the MLP with a PReLU slope per channel."""
    widths = [sizes["lookback"] * sizes["hidden"], *sizes["mlp"]]
    head = []
    for fan_in, fan_out in pairwise(widths):
        head += [torch.nn.Linear(fan_in, fan_out), torch.nn.PReLU(fan_out)]
    lstm = torch.nn.LSTM(sizes["features"], sizes["hidden"], batch_first=True)
    mlp = torch.nn.Sequential(*head, torch.nn.Linear(widths[-1], 1))
    return torch.nn.ModuleDict({"lstm": lstm, "mlp": mlp})


def load(model: Any, params: dict[str, Any]) -> None:
    """Copy params into the model, by our names."""
    known = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in params.items():
            known[TORCH_NAMES.get(name, name)].copy_(torch.as_tensor(value))


def fetch(model: Any, names: list[str]) -> dict[str, Any]:
    """Params of the model by our names; not copies."""
    known = dict(model.named_parameters())
    return {name: known[TORCH_NAMES.get(name, name)].detach() for name in names}


def pick(origins: Any, num_windows: int, sizes: dict[str, Any]) -> Any:
    """Origins (steps, batch) drawn at random from a client's training windows."""
    shape = (sizes["local_steps"], sizes["batch"])
    return origins[torch.randint(int(num_windows), shape, device=origins.device)]


def train(model: Any, features: Any, origins: Any, sizes: dict[str, Any]) -> Any:
    """Local steps on the windows with these origins (steps, batch), and the mean loss; moments
    start anew.
    """
    betas = (sizes["beta1"], sizes["beta2"])
    optimizer = torch.optim.Adam(
        model.parameters(),
        lr=sizes["lr"],
        betas=betas,
        eps=sizes["eps"],
        fused=sizes["is_fused"] or None,
    )
    lstm, mlp = model["lstm"], model["mlp"]
    times = origins[..., None] + torch.arange(1 - sizes["lookback"], 1, device=origins.device)
    total = torch.zeros((), device=features.device)
    for batch, ends in zip(times, origins + sizes["horizon"], strict=True):
        inputs, targets = (
            features[batch],
            features[ends, 0],
        )  # (batch, lookback, features), (batch,)
        states, _ = lstm(inputs)
        loss = torch.nn.functional.mse_loss(mlp(states.flatten(1)).squeeze(1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total / len(origins)


class Federation:
    """A server and its clients, who train one after the other."""

    def __init__(self, given: Given, device: str) -> None:
        self.sizes, self.device, self.num_windows = given.sizes, device, given.num_windows
        self.features = torch.as_tensor(given.features, device=device)
        self.origins = torch.as_tensor(given.origins, device=device)
        self.shared = {
            name: torch.as_tensor(value, device=device) for name, value in given.shared.items()
        }
        self.models = [make_model(given.sizes).to(device) for _ in given.features]
        for c, model in enumerate(self.models):
            load(model, {name: rows[c] for name, rows in given.personal.items()})

    def run_round(self, given_origins: Any = None) -> float:
        """One round of all clients, or of the first ones on given windows; the mean loss."""
        losses = []
        sums = {name: torch.zeros_like(value) for name, value in self.shared.items()}
        num_asked = len(self.models) if given_origins is None else len(given_origins)
        for c, model in enumerate(self.models[:num_asked]):
            load(model, self.shared)
            is_check = given_origins is not None
            origins = (
                given_origins[c]
                if is_check
                else pick(self.origins[c], self.num_windows[c], self.sizes)
            )
            losses.append(train(model, self.features[c], origins, self.sizes))
            for name, value in fetch(model, list(self.shared)).items():
                sums[name] += value
        step = self.sizes["server_lr"]
        self.shared = {
            name: x + step * (sums[name] / num_asked - x) for name, x in self.shared.items()
        }
        return float(torch.stack(losses).mean())


def set_up(device: str) -> None:
    """The same precision as ours."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("this PyTorch cannot use the GPU")


def run(federation: Any, given: Given, device: str, begun: float) -> None:
    """Check, choose threads and steps, measure and answer."""
    sizes = given.sizes
    losses = []
    for origins in torch.as_tensor(given.check_origins, device=device):
        before = time.perf_counter()
        losses.append(federation.run_round(origins))
        rate = origins[..., 0].numel() / (time.perf_counter() - before)
    candidates = [1] if device == "cuda" else [1, sizes["cores"]]
    threads, rate = _choose_threads(federation, shorten(sizes, rate, TRIAL), candidates)
    torch.set_num_threads(threads)
    federation.sizes = used = shorten(sizes, rate)
    federation.run_round()
    warmup = time.perf_counter() - begun
    answer(
        rates=measure(used, federation.run_round),
        check_losses=losses,
        warmup_seconds=warmup,
        how=(
            f"{threads} "
            f"thread{('s' if threads > 1 else '')}{say_steps(sizes, used)}{say_adam(sizes)}"
        ),
        versions={"torch": torch.__version__},
    )


def _choose_threads(
    federation: Any, sizes: dict[str, Any], candidates: list[int]
) -> tuple[int, float]:
    """The number of threads that is fastest in short rounds, and how fast it is."""
    found = {}
    federation.sizes = sizes | {"rounds": 2}
    for threads in candidates:
        torch.set_num_threads(threads)
        found[threads] = max(measure(federation.sizes, federation.run_round))
    best = max(found, key=lambda threads: found[threads])
    return best, found[best]


def main() -> None:
    """Do the work in the folder."""
    begun = time.perf_counter()
    given = read_work(Path(sys.argv[1]))
    device = given.sizes["torch_device"]
    set_up(device)
    run(Federation(given, device), given, device, begun)


if __name__ == "__main__":
    main()
