//! The layout algorithms: arrays in, a permutation out. Pure; knows nothing of ELF, kernels or files.

pub mod graph;
