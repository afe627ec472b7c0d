"""Plain federated learning, PL-FL and local training on the same data: three lists of patterns.

python examples/compare_methods.py
"""

import plfl

METHODS = {"plain FL": "none", "PL-FL": "mlp", "local": "all"}

if __name__ == "__main__":
    print(f"{'method':10} {'MASE':>6} {'worst':>6} {'bytes per client and round':>28}")
    for name, personal in METHODS.items():
        result = plfl.run(
            plfl.Config(data="generated:6?days=90", personal=personal, rounds=10, local_steps=100)
        )
        traffic = result.bytes_up_per_client_round + result.bytes_down_per_client_round
        print(f"{name:10} {result.mase_mean:6.3f} {result.mase_worst:6.3f} {traffic:28,}")
