//! What the next updates learn from, laid out on the device ahead of them.
//!
//! The rows of some updates are looked up at once: the ranges that they lie in are brought to the
//! [pool](crate::pool), and a schedule that says where each row is. A recorded update gathers its rows by
//! that schedule and moves on to the next entry by itself, so that between two schedules nothing is copied
//! to the device for it.

use std::collections::VecDeque;
use std::ops::Range;

use gpu_kernels::UPDATES_AT_ONCE;
use model::Gpt;
use model::ops::Operations;

use crate::error::Error;
use crate::pool::{Pool, RangeKey, RangeShape};
use crate::world::Share;

/// Tokens of the updates that one schedule is for, about; what is brought for them at once takes less time than
/// the updates that are queued before them.
const SCHEDULE_TOKENS: u64 = 1 << 17;
/// Most updates of a schedule.
const SCHEDULE_UPDATES_MAX: u64 = 4096;

/// Where the rows of updates come from.
pub trait Source {
    /// What its ranges are like.
    fn shape(&self) -> RangeShape;

    /// Updates that there are.
    fn updates(&self) -> u64;

    /// Rows of the update after `done` others.
    fn row_count(&self, done: u64) -> usize;

    /// Hands over the rows of the update after `done` others, in order.
    ///
    /// # Errors
    ///
    /// A tape that cannot be read or has changed, and the first that `take` gives.
    fn rows(
        &mut self,
        done: u64,
        take: &mut dyn FnMut(Row<'_>) -> Result<(), Error>,
    ) -> Result<(), Error>;
}

/// A row of tokens in a range.
#[derive(Clone, Copy, Debug)]
pub struct Row<'r> {
    /// The range.
    pub range: RangeKey,
    /// Its token ids.
    pub ids: &'r [u32],
    /// Where the row begins in it.
    pub start: usize,
    /// Its inputs; the target of each is the token after it.
    pub count: usize,
    /// Source bytes of its targets, where they are known.
    pub bytes: Option<u64>,
}

/// What is known of an update before it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Its targets.
    pub tokens: u64,
    /// Source bytes of them, where they are known.
    pub bytes: Option<u64>,
    /// Its rows, those of other ranks included.
    pub rows: usize,
}

/// The tokens of the next updates on a device.
pub struct Stage<D: Operations> {
    pool: Pool<D>,
    schedule: D::Tokens,
    /// The schedule before it goes to the device.
    entries: Vec<u32>,
    /// Rows of an update that this rank takes, at most.
    update_rows: usize,
    share: Share,
    /// Updates of a schedule, at most.
    updates: u64,
    ahead: VecDeque<Staged>,
    /// Updates before the first of those.
    done: u64,
    /// Schedules made so far.
    schedules: u64,
}

impl<D: Operations> Stage<D> {
    /// Room for the rows that `share` takes of updates of `micro_batches` micro-batches.
    ///
    /// # Errors
    ///
    /// What the device refuses, such as memory that it does not have.
    pub fn new(
        device: &D,
        shape: RangeShape,
        model::Batch { rows, time }: model::Batch,
        micro_batches: usize,
        share: Share,
    ) -> Result<Self, Error> {
        let update_rows = rows * micro_batches.div_ceil(share.world_size);
        let updates = updates_of(update_rows, time);
        Ok(Self {
            pool: Pool::new(device, shape)?,
            schedule: device.tokens(schedule_length(update_rows, time))?,
            entries: Vec::new(),
            update_rows,
            share,
            updates,
            ahead: VecDeque::new(),
            done: 0,
            schedules: 0,
        })
    }

    /// The next update, which comes after `done` others, with its rows on the device.
    ///
    /// # Errors
    ///
    /// What the source or the device refuses.
    ///
    /// # Panics
    ///
    /// When the update has more rows than there is room for.
    pub fn next(
        &mut self,
        gpt: &Gpt<D>,
        source: &mut dyn Source,
        done: u64,
    ) -> Result<Staged, Error> {
        if self.ahead.is_empty() || self.done != done {
            self.lay_out(gpt, source, done)?;
        }
        self.done += 1;
        Ok(self.ahead.pop_front().expect("at least one update is laid out"))
    }

    /// The next updates that are laid out and have the tokens and the rows of `own`.
    #[must_use]
    pub fn alike(&self, own: Staged) -> usize {
        let is_alike = |next: &&Staged| (next.tokens, next.rows) == (own.tokens, own.rows);
        self.ahead.iter().take_while(is_alike).count()
    }

    /// Rows of an update, at most.
    #[must_use]
    pub fn update_rows(&self) -> usize {
        self.update_rows
    }

    /// The ids that rows lie in, and the schedule.
    pub fn parts(&mut self) -> (&D::Tokens, &mut D::Tokens) {
        (self.pool.ids(), &mut self.schedule)
    }

    /// Makes the schedule of the updates from the one after `done` others on.
    fn lay_out(&mut self, gpt: &Gpt<D>, source: &mut dyn Source, done: u64) -> Result<(), Error> {
        self.ahead.clear();
        self.entries.clear();
        self.entries.push(0);
        self.schedules += 1;
        let end = source.updates().min(done + self.updates).max(done + 1);
        for update in done..end {
            let before = self.entries.len();
            match self.lay_out_one(gpt, source, update) {
                Ok(Some(staged)) => self.ahead.push_back(staged),
                // An error is due only when its update is the next one.
                Ok(None) | Err(_) if update > done => {
                    self.entries.truncate(before);
                    break;
                }
                Ok(None) => unreachable!("there is room for the ranges of one update"),
                Err(error) => return Err(error),
            }
        }
        self.done = done;
        gpt.device().upload_tokens(&mut self.schedule, 0, &self.entries)?;
        Ok(())
    }

    /// Adds the entries of one update; `None` if there is no room for its ranges beside those of the updates
    /// before.
    fn lay_out_one(
        &mut self,
        gpt: &Gpt<D>,
        source: &mut dyn Source,
        update: u64,
    ) -> Result<Option<Staged>, Error> {
        let Self { pool, entries, schedules, update_rows, share, .. } = self;
        let first = entries.len();
        let own = own_rows(*share, gpt.batch().rows, source.row_count(update));
        assert!(own.len() <= *update_rows, "{} rows of {update_rows}", own.len());
        let mut staged = Staged { tokens: 0, bytes: Some(0), rows: 0 };
        let mut has_room = true;
        source.rows(update, &mut |row| {
            if !has_room {
                return Ok(());
            }
            if own.contains(&staged.rows) {
                let Some(place) = pool.place(gpt, row.range, row.ids, *schedules)? else {
                    has_room = false;
                    return Ok(());
                };
                entries.extend([(place + row.start) as u32, row.count as u32]);
            }
            staged.tokens += row.count as u64;
            staged.bytes = staged.bytes.zip(row.bytes).map(|(all, row)| all + row);
            staged.rows += 1;
            Ok(())
        })?;
        entries.resize(first + 2 * *update_rows, 0);
        Ok(has_room.then_some(staged))
    }
}

/// The rows of an update of `rows` rows that a rank takes: those of its micro-batches.
fn own_rows(share: Share, batch: usize, rows: usize) -> Range<usize> {
    let own = share.part_of(rows.div_ceil(batch));
    (own.start * batch).min(rows)..(own.end * batch).min(rows)
}

/// Token ids of the schedule for updates of `update_rows` rows of `time` tokens.
#[must_use]
pub fn schedule_length(update_rows: usize, time: usize) -> usize {
    1 + 2 * update_rows * updates_of(update_rows, time) as usize
}

/// Updates of a schedule: a multiple of those that are queued at once, where there are as many.
fn updates_of(update_rows: usize, time: usize) -> u64 {
    let updates = (SCHEDULE_TOKENS / (update_rows * time) as u64).clamp(1, SCHEDULE_UPDATES_MAX);
    let at_once = UPDATES_AT_ONCE as u64;
    if updates < at_once { updates } else { updates / at_once * at_once }
}
