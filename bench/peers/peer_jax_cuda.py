"""XLA through JAX on the GPU."""

import jax

import peer_jax

jax.config.update("jax_platforms", "cuda")  # before anything is computed

PRECISIONS = peer_jax.PRECISIONS
version, load = peer_jax.version, peer_jax.load
