//! The shape of an update's launch: choices that change its speed and no bit of its results.

/// How the update of a model is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Threads of a block, each of which takes four elements: a power of two from 32 to 1024.
    pub threads: u32,
    /// Where a block looks for its tensor.
    pub table: TableIn,
}

/// Where the table of tensors lies, in which a block searches for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TableIn {
    /// In the argument of the launch, which every multiprocessor has at hand: the fastest on an
    /// H200 at every size. A model of too many tensors for an argument has it in memory all the
    /// same.
    Argument,
    /// In the device's memory.
    Memory,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { threads: 128, table: TableIn::Argument }
    }
}

impl Shape {
    /// The shapes worth measuring, each with a name.
    #[must_use]
    pub fn variants() -> Vec<(&'static str, Shape)> {
        let (argument, memory) = (TableIn::Argument, TableIn::Memory);
        vec![
            ("argument, 128 threads", Shape { threads: 128, table: argument }),
            ("argument, 256 threads", Shape { threads: 256, table: argument }),
            ("argument, 512 threads", Shape { threads: 512, table: argument }),
            ("memory, 128 threads", Shape { threads: 128, table: memory }),
            ("memory, 256 threads", Shape { threads: 256, table: memory }),
        ]
    }
}
