//! Numbers become bytes, one format a file. Computes nothing.

pub mod dump;
