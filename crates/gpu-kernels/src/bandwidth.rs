//! How fast the device copies its own memory: the ceiling for everything that reads and writes each
//! byte once.

use crate::event::Event;
use crate::{Buffer, Error, Gpu};

/// Two buffers, to copy from one to the other.
pub struct Copy {
    from: Buffer<u32>,
    to: Buffer<u32>,
}

impl Copy {
    /// Copies of `bytes` bytes each; a gigabyte and more is beyond any cache.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], and what the driver refuses.
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Copy, Error> {
        let words = bytes / size_of::<u32>();
        Ok(Copy { from: gpu.zeros(words)?, to: gpu.zeros(words)? })
    }

    /// The bandwidth of each of `repeats` copies, bytes read and bytes written together, in 10^9
    /// bytes per second. One more copy goes before them.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn gb_per_s(&mut self, repeats: usize) -> Result<Vec<f64>, Error> {
        let gpu = self.from.gpu().clone();
        let bytes = 2 * self.from.len() * size_of::<u32>();
        self.to.copy_from(&self.from)?;
        let mut events = Vec::with_capacity(2 * repeats);
        for _ in 0..repeats {
            let start = Event::timed(&gpu)?;
            start.record(&gpu)?;
            self.to.copy_from(&self.from)?;
            let end = Event::timed(&gpu)?;
            end.record(&gpu)?;
            events.push((start, end));
        }
        let rate = |(start, end): &(Event, Event)| Ok(bytes as f64 / start.elapsed_ms(end)? / 1e6);
        events.iter().map(rate).collect()
    }
}
