//! CUDA kernels and the memory they work on.
