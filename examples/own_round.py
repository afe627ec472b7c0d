"""The parts by themselves: one round written out with the optimizer factories, without the engine.

python examples/own_round.py
"""

import jax
import jax.numpy as jnp

from plfl.data.generated import generate
from plfl.federate import client, server
from plfl.federate.client import LocalTraining, client_update
from plfl.federate.params import batches_key, client_keys, personal_key, shared_key
from plfl.federate.partition import make_partition
from plfl.forecast.lstm_mlp.network import lstm_mlp
from plfl.forecast.models import make_objective
from plfl.forecast.windows import make_task
from plfl.recipes import paper

if __name__ == "__main__":
    task = make_task(generate(3, days=60), paper())
    model = lstm_mlp(task.num_features, task.lookback)
    partition = make_partition(model.init(shared_key(0)), ["mlp.*"])
    loss = make_objective("squared", task.view, model)
    training = LocalTraining(
        model, loss, partition, client.adam(lr=2e-3), task.view, local_steps=50, batch=16
    )
    optimizer = server.fed_yogi()
    update_locally = jax.jit(client_update, static_argnums=0)
    keys = client_keys(0, task.panel.ids)
    clients = [training.init_client(personal_key(key)) for key in keys]
    state = optimizer.init(partition.split(model.init(shared_key(0)))[0], len(clients))

    for round_index in range(1, 6):
        updates, losses = [], []
        for c in range(len(clients)):  # each at its own home, with its own data
            shared = optimizer.broadcast(state, c)
            key = batches_key(keys[c], round_index)
            clients[c], update, loss = update_locally(
                training, shared, clients[c], task.client(c), key
            )
            updates.append(update)  # all that leaves the client
            losses.append(float(loss))
        stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *updates)
        state = optimizer.update(state, stacked, jnp.ones(len(clients)))
        print(f"round {round_index}: mean loss {sum(losses) / len(losses):.4f}")
