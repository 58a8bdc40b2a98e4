//! Reads a tape: the one named, or one made of stories.
//!
//! `cargo run -p tape --example read_tape [FILE.tokens.u32]`

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

use std::ops::ControlFlow;

use tape::Error;
use tape::layout::{Part, TapeFiles};
use tape::prepare::{PrepareOptions, Split, prepare};
use tape::reader::Tape;
use tape::sources::InMemory;
use tape::stories::Stories;
use tape::tokenizer::Tokenizer;
use tape::windows::{WindowShape, Windows};

fn main() -> Result<(), Error> {
    let tokenizer = Tokenizer::bundled();
    let scratch = std::env::temp_dir().join(format!("read-tape-{}", std::process::id()));
    let named = std::env::args().nth(1);
    let files = match &named {
        Some(path) => TapeFiles::beside(path),
        None => {
            let mut stories = InMemory::new("stories, seed 1", Stories::new(1).take(20));
            let options = PrepareOptions::new(&scratch, Split::Whole(Part::Train));
            prepare(&mut stories, &tokenizer, &options, &mut |_| ControlFlow::Continue(()))?;
            TapeFiles::in_folder(&scratch, Part::Train)
        }
    };
    let tape = Tape::open(&files, Some(tokenizer.vocabulary()))?;
    println!("{} tokens that stand for {:?} bytes", tape.len(), tape.source_bytes());
    let mut first = Vec::new();
    tape.read(0..tape.len().min(60), &mut first)?;
    println!("{}", tokenizer.decode(&first)?);

    let windows = Windows::new(&tape, WindowShape { batch: 2, context: 64 });
    println!("{} windows of {} tokens", windows.count(), windows.tokens_per_window());
    let window = windows.at(0)?.expect("the tape is longer than one window");
    let (inputs, targets) = window.rows().next().expect("a window has rows");
    assert_eq!(inputs[1..], targets[..targets.len() - 1]);
    if named.is_none() {
        std::fs::remove_dir_all(&scratch).expect("it was made above");
    }
    Ok(())
}
