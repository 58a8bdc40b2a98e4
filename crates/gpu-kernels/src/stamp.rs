//! How long work takes on the device, measured in that work, so that every replay of a recording tells. Launches
//! `cuda/stamp.cu`.

#![expect(unsafe_code, reason = "launches a kernel over an address")]

use crate::launch::launch;
use crate::module::Kernel;
use crate::programs::network;
use crate::{Buffer, Error, Gpu, Ring};

/// Two points in time that later work passes, and what was queued for the host of earlier passes.
pub struct Stopwatch {
    kernel: Kernel,
    times: Buffer<u64>,
    ring: Ring<u64>,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Where it begins to count.
    Start,
    /// Where it ends.
    Stop,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Argument {
    time: u64,
}

impl Stopwatch {
    /// One on a device.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn new(gpu: &Gpu) -> Result<Stopwatch, Error> {
        let kernel = gpu.module(&network::stamp())?.kernel("stamp")?;
        Ok(Stopwatch { kernel, times: gpu.zeros(2)?, ring: Ring::new(gpu, 2)? })
    }

    /// Queues a point; can be recorded.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn pass(&mut self, gpu: &Gpu, point: Point) -> Result<(), Error> {
        let time = self.times.address() + size_of::<u64>() as u64 * u64::from(point == Point::Stop);
        // SAFETY: 1. `Argument` is laid out as `Stamp` in stamp.cu, which takes one thread. 2. The address is one of the two
        // numbers. 3. They were borrowed mutably.
        unsafe { launch(gpu, &self.kernel, 1, 1, &Argument { time }) }
    }

    /// Queues for the host what the last passes measured.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn queue(&mut self) -> Result<(), Error> {
        self.ring.queue(&self.times)
    }

    /// The oldest time that was queued and not taken yet, in milliseconds. `None` if there is none, or if it is still on
    /// its way and nobody `waits` for it.
    ///
    /// # Errors
    ///
    /// What went wrong in the work before.
    pub fn take_ms(&mut self, waits: bool) -> Result<Option<f64>, Error> {
        self.ring.take(waits, |times| times[1].saturating_sub(times[0]) as f64 / 1e6)
    }
}
