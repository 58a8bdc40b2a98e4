//! The shape of an update's launch: choices that change its speed and no bit of its results.

/// How the update of a model is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Threads of a block, each of which takes four elements: a power of two from 32 to 1024.
    pub threads: u32,
    /// Where a block looks for its tensor.
    pub table: TableIn,
    /// Tiles that a block takes one after the other of a tensor in a format of blocks: a power of two,
    /// at most 2048 threads of all tiles; `None` to choose by the number of elements.
    pub tiles: Option<u32>,
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
        Shape { threads: 128, table: TableIn::Argument, tiles: None }
    }
}

impl Shape {
    /// The shapes worth measuring, each with a name.
    #[must_use]
    pub fn variants() -> Vec<(&'static str, Shape)> {
        let (argument, memory) = (TableIn::Argument, TableIn::Memory);
        let shape = |threads, table| Shape { threads, table, tiles: None };
        let tiles = |threads, tiles| Shape { tiles: Some(tiles), ..shape(threads, argument) };
        vec![
            ("argument, 128 threads", shape(128, argument)),
            ("argument, 256 threads", shape(256, argument)),
            ("argument, 512 threads", shape(512, argument)),
            ("memory, 128 threads", shape(128, memory)),
            ("memory, 256 threads", shape(256, memory)),
            ("256 threads, 1 tile", tiles(256, 1)),
            ("256 threads, 2 tiles", tiles(256, 2)),
            ("256 threads, 8 tiles", tiles(256, 8)),
            ("512 threads, 1 tile", tiles(512, 1)),
            ("512 threads, 4 tiles", tiles(512, 4)),
        ]
    }
}
