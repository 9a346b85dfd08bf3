//! The machine: caches, TLBs, branch prediction; a stream in, counters out; pure.
