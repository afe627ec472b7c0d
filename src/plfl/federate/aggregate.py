"""Aggregates: how a cohort's updates are made harmless before their weighted mean is taken.

A hostile client may answer whatever the gate lets pass. An aggregate changes rows so that a few of
them cannot move the mean far. It changes rows, not only their mean, since one server
(`fed_avg_adaptive`) follows each client on its own.

  mean          leaves them as they are (McMahan et al. 2017)
  clipped_mean  pulls those to a centre that lie far from it, in all or in one name: to 0 first,
                then to the mean of what was pulled (after centred clipping, Karimireddy et al.
                2021, arXiv 2012.10333, within one round)
  trimmed_mean  number by number, replaces what lies outermost by the mean of the rest (Yin et
                al. 2018, arXiv 1803.01498)
  median        the same for all but the middle one or two

Weights are claims too: under all but `mean` a client counts no more than the median one does.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from plfl.federate.gate import masked_median, row_norms
from plfl.federate.params import join_rows, name_rows
from plfl.forecast.models import Params

# How far from the centre a row may be, in median distances; honest ones of the bundled sets were up
# to 1.73 away.
RADIUS = 2.0
# The same for one name of it: in small ones honest clients were up to 4.6 of them away.
NAME_RADIUS = 10.0


class Aggregate(NamedTuple):
    """What happens to rows: one of the two, or nothing."""

    passes: int = 0  # how often those far from a centre are pulled to it
    # Share of the weight that is taken away at each end of every number; a half leaves the median.
    trim: float = 0.0

    @property
    def is_mean(self) -> bool:
        """Whether rows stay as they are."""
        return self == Aggregate()

    def weigh(self, weights: jax.Array) -> jax.Array:
        """What each client's weight counts for (clients,)."""
        return (
            weights if self.is_mean else jnp.minimum(weights, masked_median(weights, weights > 0))
        )

    def tame(self, updates: Params, weights: jax.Array) -> Params:
        """Rows whose mean is the aggregate, from those of all clients (clients, ...); a weight of 0
        is nobody.
        """
        if self.is_mean or not updates:
            return updates
        rows, counted = join_rows(updates), self.weigh(weights)
        if self.trim:
            return name_rows(settle(rows, counted, self.trim), updates)

        def average(center: jax.Array, kept: jax.Array) -> jax.Array:
            return average_pulled(
                jnp.tensordot(counted * kept, rows, axes=1), counted, center, kept
            )

        pulled = self.clip(
            rows.shape[1], counted, lambda center: distances(updates, center), average
        )
        return name_rows(pull(rows, *pulled), updates)

    def clip(
        self,
        num_numbers: int,
        weights: jax.Array,
        measure: Callable[[jax.Array], jax.Array],
        average: Callable[[jax.Array, jax.Array], jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        """The last centre (numbers,), and which part of its way from there each row keeps
        (clients,).

        `measure` gives the rows' distances from a centre, name by name (clients, names), `average`
        the mean of rows that are pulled to it.
        """
        center = jnp.zeros(num_numbers)
        kept = shorten(measure(center), weights)
        for _ in range(self.passes - 1):
            center = average(center, kept)
            kept = shorten(measure(center), weights)
        return center, kept


def distances(updates: Params, center: jax.Array) -> jax.Array:
    """How far each row is from a centre, name by name (clients, names)."""
    apart = name_rows(join_rows(updates) - center, updates)
    return jnp.stack([row_norms(value.reshape(len(value), -1)) for value in apart.values()], axis=1)


def shorten(by_name: jax.Array, weights: jax.Array) -> jax.Array:
    """Which part of its distance each row keeps (clients,): all within the radius, less beyond.

    Honest rows are about equally far from their centre, so that a radius somewhat above the median
    leaves them alone; a few numbers into which a hostile one puts its whole distance stand out by
    name. Beyond the radius the square is lost, so that it pays nobody to lie there. A name that
    most leave as it is, but for rounding, tells nothing.
    """
    apart = jnp.column_stack([row_norms(by_name), by_name])
    usual = jax.vmap(masked_median, in_axes=(1, None))(apart, weights > 0)
    is_told = usual[1:] > 1e-6 * usual[0]
    by_name_most = jnp.where(is_told, NAME_RADIUS * usual[1:], jnp.inf)
    most = jnp.append(RADIUS * usual[0], by_name_most)
    return jnp.where(apart > most, (most / apart) ** 2, 1).min(axis=1)


def pull(rows: jax.Array, center: jax.Array, kept: jax.Array) -> jax.Array:
    """Rows nearer to a centre; those that keep everything stay as they are, bit for bit."""
    kept = kept[:, None]
    return jnp.where(kept < 1, center + kept * (rows - center), rows)


def average_pulled(
    total: jax.Array, weights: jax.Array, center: jax.Array, kept: jax.Array
) -> jax.Array:
    """The mean of pulled rows, from the total of rows by weight times what they keep: no pulled row
    need be made.
    """
    at_center = weights.sum() - (weights * kept).sum()
    return (total + at_center * center) / weights.sum()


def settle(rows: jax.Array, weights: jax.Array, trim: float) -> jax.Array:
    """Rows in which every number that lies outside the middle is the weighted mean of those inside.

    The middle begins with the first number up to which there is more than `trim` of all weight, and
    ends with the last from which on there is as much; of an even number of rows a half leaves two,
    and their mean.
    """
    is_in = (weights > 0)[:, None]
    mass = jnp.broadcast_to(weights[:, None], rows.shape)
    ordered, mass = jax.lax.sort((jnp.where(is_in, rows, jnp.inf), mass), dimension=0, num_keys=1)
    up_to, total = jnp.cumsum(mass, axis=0), weights.sum()
    first = (up_to <= trim * total).sum(axis=0)
    last = (total - up_to + mass > trim * total).sum(axis=0) - 1
    ends = jnp.take_along_axis(ordered, jnp.stack([first, last]), axis=0)
    counted = jnp.where(
        is_in & (rows >= ends.min(axis=0)) & (rows <= ends.max(axis=0)), weights[:, None], 0
    )
    middle = jnp.where(counted > 0, counted * rows, 0).sum(axis=0) / counted.sum(axis=0)
    return jnp.where(counted > 0, rows, middle)


def mean() -> Aggregate:
    """The weighted mean."""
    return Aggregate()


def clipped_mean(*, passes: int = 3) -> Aggregate:
    """The mean of rows of which those far from a centre are pulled to it."""
    return Aggregate(passes=passes)


def trimmed_mean(*, trim: float = 0.25) -> Aggregate:
    """The mean of the middle, number by number."""
    return Aggregate(trim=trim)


def median() -> Aggregate:
    """The median, number by number."""
    return Aggregate(trim=0.5)


AGGREGATES: dict[str, Callable[..., Aggregate]] = {
    "clipped_mean": clipped_mean,
    "trimmed_mean": trimmed_mean,
    "median": median,
    "mean": mean,
}
