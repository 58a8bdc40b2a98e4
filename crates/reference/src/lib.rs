//! The authority: slow, scalar, obvious AdamW that everything else is compared with.
