//! `watch`: a live view of a run or a study, over the files that it writes.
//!
//! Nothing is asked of the processes that train: the view reads what they append, so it shows a finished run as well
//! as one on another machine with the same file system. `state` reads, `view` draws; here are keys and time.

mod state;
mod view;

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::args::Watch;
use crate::output;
use state::Watched;

pub fn run(args: &Watch) -> Result<()> {
    let mut watched = Watched::open(&args.path)?;
    if args.once || !std::io::stdout().is_terminal() {
        return output::data(&still(&watched, args.width, args.height)?);
    }
    let mut terminal = ratatui::try_init().context("the terminal cannot be drawn on")?;
    let ended = live(&mut terminal, &mut watched, Duration::from_millis(args.every_ms));
    ratatui::restore();
    ended
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    watched: &mut Watched,
    every: Duration,
) -> Result<()> {
    loop {
        terminal.draw(|frame| view::draw(frame, watched))?;
        let due = Instant::now() + every;
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if !event::poll(left)? {
                break;
            }
            let Event::Key(key) = event::read()? else { break };
            if key.kind != KeyEventKind::Press {
                continue;
            }
            let ends = key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if ends => return Ok(()),
                KeyCode::Up | KeyCode::Char('k') => watched.select(-1),
                KeyCode::Down | KeyCode::Char('j') => watched.select(1),
                KeyCode::Tab | KeyCode::Char('t') => watched.over_time = !watched.over_time,
                KeyCode::Char('z') => watched.late_only = !watched.late_only,
                _ => continue,
            }
            break;
        }
        watched.refresh()?;
    }
}

/// One picture as text, for what is no terminal.
fn still(watched: &Watched, width: u16, height: u16) -> Result<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height))?;
    terminal.draw(|frame| view::draw(frame, watched))?;
    let buffer = terminal.backend().buffer().clone();
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    Ok(text)
}
