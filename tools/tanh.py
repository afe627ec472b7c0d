"""Find the coefficients of tanh in src/plfl/native/kernels.c: x p(x^2) / q(x^2) with the smallest
relative error.

    python tools/tanh.py

Weighted least squares on x p - tanh(x) q, linearised around the last q; the weights grow where the
error is largest, which leads towards the minimax solution. The outcome is checked as the kernel
computes it, in float32.
"""

import numpy as np

LIMIT, DEGREE_P, DEGREE_Q = 8.0, 6, 3
"""Beyond the limit, tanh is 1 in float32."""


def fit(rounds: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of p and q, lowest power first."""
    x = np.unique(
        [*LIMIT * np.sin(np.linspace(0, np.pi / 2, 6001)[1:]), *np.linspace(1e-3, LIMIT, 4000)]
    )
    u, target = (x / LIMIT) ** 2, np.tanh(x)
    weights, q, best = np.ones_like(x), np.ones_like(x), np.inf
    for _ in range(rounds):
        columns = [x * u**k for k in range(DEGREE_P + 1)] + [
            -target * u**k for k in range(1, DEGREE_Q + 1)
        ]
        scale = np.sqrt(weights) / q / target
        system = np.stack(columns, 1) * scale[:, None]
        sizes = np.linalg.norm(system, axis=0)
        found = np.linalg.lstsq(system / sizes, target * scale, rcond=None)[0] / sizes
        top, bottom = found[: DEGREE_P + 1], np.array([1, *found[DEGREE_P + 1 :]])
        q = np.polyval(bottom[::-1], u)
        error = np.abs(x * np.polyval(top[::-1], u) / q / target - 1)
        if error.max() < best:
            best, kept = error.max(), (top, bottom)
        weights *= (error + 1e-12) ** 0.7
        weights /= weights.sum()
    top, bottom = kept
    return top / LIMIT ** (2 * np.arange(DEGREE_P + 1)), bottom / LIMIT ** (
        2 * np.arange(DEGREE_Q + 1)
    )


def evaluate(p: np.ndarray, q: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The approximation in float32."""
    x = np.clip(x, -LIMIT, LIMIT).astype(np.float32)
    u, top, bottom = x * x, np.float32(p[-1]), np.float32(q[-1])
    for k in p[-2::-1]:
        top = top * u + np.float32(k)
    for k in q[-2::-1]:
        bottom = bottom * u + np.float32(k)
    return x * top / bottom


def main() -> None:
    """Print the coefficients and the largest error."""
    p, q = fit()
    for name, values in (("p", p), ("q", q)):
        print(name, ", ".join(f"{value:.9e}f" for value in values))
    x = np.concatenate([np.linspace(-12, 12, 2_000_000), np.logspace(-30, 1, 100_000)]).astype(
        np.float32
    )
    print(
        "largest relative error in float32: "
        f"{np.abs(evaluate(p, q, x) / np.tanh(x.astype(float)) - 1).max():.1e}"
    )


if __name__ == "__main__":
    main()
