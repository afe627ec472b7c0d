"""Peer: PyTorch with all clients stacked, each product a batched one over clients, eager.

    python torch_stacked.py FOLDER

One tape and one Adam step serve all clients at once; the LSTM is written out, since torch.nn.LSTM
has no axis of clients.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from given import Given, read_work
from torch_loop import run, set_up


class Federation:
    """A server and its clients, who train at once."""

    def __init__(self, given: Given, device: str) -> None:
        self.sizes, self.device = given.sizes, device
        self.features = torch.as_tensor(given.features, device=device)
        self.origins = torch.as_tensor(given.origins, device=device)
        self.num_windows = torch.as_tensor(given.num_windows, device=device)
        self.shared = {
            name: torch.as_tensor(value, device=device) for name, value in given.shared.items()
        }
        self.personal = {
            name: torch.as_tensor(rows, device=device) for name, rows in given.personal.items()
        }

    def run_round(self, given_origins: Any = None) -> float:
        """One round of all clients, or of the first ones on given windows; the mean loss."""
        num_asked = len(self.features) if given_origins is None else len(given_origins)
        origins = self._pick() if given_origins is None else given_origins
        params = {name: x.expand(num_asked, *x.shape).clone() for name, x in self.shared.items()}
        params |= {name: rows[:num_asked].clone() for name, rows in self.personal.items()}
        loss = self._train(
            {name: value.requires_grad_() for name, value in params.items()}, origins
        )
        with torch.no_grad():
            for name, rows in self.personal.items():
                rows[:num_asked] = params[name]
            step = self.sizes["server_lr"]
            self.shared = {
                name: x + step * (params[name].mean(0) - x) for name, x in self.shared.items()
            }
        return float(loss)

    def _pick(self) -> Any:
        """Origins (clients, steps, batch) drawn at random from each client's training windows."""
        shape = (len(self.features), self.sizes["local_steps"] * self.sizes["batch"])
        draws = (
            torch.rand(shape, device=self.device, dtype=torch.float64) * self.num_windows[:, None]
        )
        picked = self.origins.gather(1, draws.long())
        return picked.reshape(shape[0], self.sizes["local_steps"], self.sizes["batch"])

    def _train(self, params: dict[str, Any], origins: Any) -> Any:
        betas = (self.sizes["beta1"], self.sizes["beta2"])
        optimizer = torch.optim.Adam(
            params.values(),
            lr=self.sizes["lr"],
            betas=betas,
            eps=self.sizes["eps"],
            fused=self.sizes["is_fused"] or None,
        )
        rows = torch.arange(len(origins), device=self.device)
        offsets = torch.arange(1 - self.sizes["lookback"], 1, device=self.device)
        total = torch.zeros((), device=self.device)
        for step in range(origins.shape[1]):
            ends = origins[:, step]  # (clients, batch)
            inputs = self.features[rows[:, None, None], ends[..., None] + offsets]
            targets = self.features[rows[:, None], ends + self.sizes["horizon"], 0]
            loss = (
                ((self._forecast(params, inputs) - targets) ** 2).mean(1).sum()
            )  # a client's gradient is its own
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return total / (origins.shape[0] * origins.shape[1])

    def _forecast(self, params: dict[str, Any], inputs: Any) -> Any:
        """Forecasts (clients, batch) of inputs (clients, batch, lookback, features)."""
        clients, batch, lookback, features = inputs.shape
        bias = (params["lstm.bias_ih"] + params["lstm.bias_hh"])[:, None]
        by_time = inputs.transpose(1, 2).reshape(clients, lookback * batch, features)
        projected = torch.baddbmm(bias, by_time, params["lstm.weight_ih"].transpose(1, 2))
        weight_hh = params["lstm.weight_hh"].transpose(1, 2)
        h = c = inputs.new_zeros(clients, batch, self.sizes["hidden"])
        states = []
        for x in projected.split(batch, dim=1):
            gates = torch.baddbmm(x, h, weight_hh)
            i, f, g, o = gates.chunk(4, dim=2)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        x = torch.cat(states, dim=2)  # (clients, batch, lookback x hidden)
        last = len(self.sizes["mlp"])
        for k in range(last + 1):
            weight, bias = params[f"mlp.{2 * k}.weight"], params[f"mlp.{2 * k}.bias"]
            x = torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))
            if k < last:
                x = torch.where(x > 0, x, params[f"mlp.{2 * k + 1}.weight"][:, None] * x)
        return x.squeeze(2)


def main() -> None:
    """Do the work in the folder."""
    begun = time.perf_counter()
    given = read_work(Path(sys.argv[1]))
    device = given.sizes["torch_device"]
    set_up(device)
    run(Federation(given, device), given, device, begun)


if __name__ == "__main__":
    main()
