//! How many updates that follow each other become one recording.
//!
//! On a device a recording costs the host some microseconds, whatever is in it. Recorded together, short updates share
//! them, the copy of their scalars to the device, and the copies of what they found back from it.

/// Most micro-batches of a recording.
const MICRO_BATCHES_MAX: usize = 8;
/// Most tokens of a recording: where updates take longer, the host's time is not worth a stop that comes later.
const TOKENS_MAX: u64 = 1 << 14;

/// Updates of so many micro-batches and tokens that are recorded together, where `most` could be.
#[must_use]
pub fn updates_at_once(micro_batches: usize, tokens: u64, most: usize) -> usize {
    let by_tokens = TOKENS_MAX / tokens.max(1);
    let by_batches = MICRO_BATCHES_MAX / micro_batches.max(1);
    most.min(by_batches).min(by_tokens as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::updates_at_once;

    #[test]
    fn short_updates_are_recorded_together() {
        assert_eq!(updates_at_once(1, 1152, 8), 8);
        assert_eq!(updates_at_once(2, 2 * 1024, 8), 4);
        assert_eq!(updates_at_once(1, 4096, 8), 4);
        assert_eq!(updates_at_once(1, 32 * 1024, 8), 1);
        assert_eq!(updates_at_once(16, 64, 8), 1);
        assert_eq!(updates_at_once(1, 1152, 1), 1);
    }
}
