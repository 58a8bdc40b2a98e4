//! Finite sequential training with exact resume.
