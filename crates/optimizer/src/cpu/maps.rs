//! The maps of `block8` as vectors look codes up in them.

use formats::Maps;
use formats::dynamic_map::Quantizer;

use crate::simd::Table;

/// Both maps with their tables.
#[derive(Clone, Debug)]
pub(crate) struct MapTables {
    pub(crate) maps: Box<Maps>,
    pub(crate) first: MapTable,
    pub(crate) second: MapTable,
}

/// What codes of one map stand for, and where they end.
#[derive(Clone, Debug)]
pub(crate) struct MapTable {
    pub(crate) entries: Table,
    pub(crate) thresholds: Table,
}

impl MapTables {
    pub(crate) fn new(maps: Box<Maps>) -> MapTables {
        let table = |quantizer: &Quantizer| MapTable {
            entries: Table::new(&quantizer.map),
            thresholds: Table::new(&quantizer.thresholds),
        };
        MapTables { first: table(&maps.first), second: table(&maps.second), maps }
    }
}
