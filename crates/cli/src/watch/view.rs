//! The picture: runs as a table, the selected one's curves below it.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Cell, Chart, Dataset, GraphType, Row, Table, TableState};

use super::state::{Watched, WatchedRun};
use crate::output::{duration, grouped};

/// Colours that colour-blind readers can tell apart, for training and validation.
const COLORS: [Color; 2] = [Color::Rgb(86, 180, 233), Color::Rgb(230, 159, 0)];

/// Lines of the table of a study, its head and frame included.
const TABLE_LINES_MAX: usize = 16;

pub fn draw(frame: &mut Frame<'_>, watched: &Watched) {
    let lines = (watched.runs.len() + 3).min(TABLE_LINES_MAX) as u16;
    let parts =
        Layout::vertical([Constraint::Length(lines), Constraint::Min(6), Constraint::Length(1)]);
    let [table, chart, keys] = parts.areas(frame.area());
    draw_runs(frame, table, watched);
    if let Some(run) = watched.runs.get(watched.selected) {
        draw_curves(frame, chart, run, watched);
    }
    let help =
        " q ends   up, down choose a run   t: over time or tokens   z: without the first tenth";
    frame.render_widget(Line::from(help).style(Style::new().add_modifier(Modifier::DIM)), keys);
}

fn draw_runs(frame: &mut Frame<'_>, area: Rect, watched: &Watched) {
    let head =
        ["run", "state", "format", "device", "update", "loss", "validated", "tokens/s", "left"];
    let rows = watched.runs.iter().map(|run| Row::new(cells(run).map(Cell::from)));
    let widths = [
        Constraint::Fill(3),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Fill(2),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(11),
        Constraint::Length(12),
    ];
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(bold))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::bordered().title(format!(" {} ", watched.title)));
    let mut state = TableState::new().with_selected(Some(watched.selected));
    frame.render_stateful_widget(table, area, &mut state);
}

fn cells(run: &WatchedRun) -> [String; 9] {
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let started = run.started.as_ref();
    let last = run.updates.last();
    // The mean of some updates, since single ones jump.
    let recent = &run.updates[run.updates.len().saturating_sub(20)..];
    let losses: Vec<f64> = recent.iter().map(|u| u.bpb.unwrap_or(u.loss_nats)).collect();
    let loss = losses.iter().sum::<f64>() / losses.len().max(1) as f64;
    let validated = run.validations.last();
    [
        run.name.clone(),
        run.state.to_owned(),
        known(started.map(|started| started.state_format.clone())),
        known(started.map(|started| started.device.clone())),
        known(started.map(|all| format!("{}/{}", grouped(run.done()), grouped(all.updates_total)))),
        known(last.map(|_| format!("{loss:.4}"))),
        known(validated.map(|found| format!("{:.4}", found.bpb.unwrap_or(found.loss_nats)))),
        known(last.map(|update| grouped(update.tokens_per_s as u64))),
        known(run.left_s().map(duration)),
    ]
}

fn draw_curves(frame: &mut Frame<'_>, area: Rect, run: &WatchedRun, watched: &Watched) {
    let x = |tokens: u64, elapsed_s: f64| if watched.over_time { elapsed_s } else { tokens as f64 };
    let training: Vec<(f64, f64)> = run
        .updates
        .iter()
        .filter(|update| !update.skipped)
        .map(|update| (x(update.tokens, update.elapsed_s), update.bpb.unwrap_or(update.loss_nats)))
        .collect();
    let training = trainer::running_mean(&training);
    let validation: Vec<(f64, f64)> = run
        .validations
        .iter()
        .map(|found| (x(found.tokens, found.elapsed_s), found.bpb.unwrap_or(found.loss_nats)))
        .collect();
    let last = training.iter().chain(&validation).map(|&(x, _)| x).fold(0.0, f64::max);
    let first = if watched.late_only { last / 10.0 } else { 0.0 };
    let shown = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        points.iter().copied().filter(|&(x, _)| x >= first).collect()
    };
    let training = trainer::thin(&shown(&training), 4 * usize::from(area.width));
    let validation = shown(&validation);
    let heights = training.iter().chain(&validation).map(|&(_, y)| y).filter(|y| y.is_finite());
    let (low, high) = heights.fold((f64::INFINITY, 0.0_f64), |(l, h), y| (l.min(y), h.max(y)));
    let (low, high) = if low < high { (low, high) } else { (0.0, 1.0) };
    let line = |name: &'static str, color: Color, kind: GraphType| {
        Dataset::default()
            .name(name)
            .marker(Marker::Braille)
            .graph_type(kind)
            .style(Style::new().fg(color))
    };
    let sets = vec![
        line("training, running mean", COLORS[0], GraphType::Line).data(&training),
        line("validation", COLORS[1], GraphType::Line).data(&validation),
    ];
    let number = |x: f64| if watched.over_time { duration(x) } else { grouped(x as u64) };
    let middle = f64::midpoint(first, last);
    let has_bytes = run.updates.last().is_none_or(|update| update.bpb.is_some());
    let unit = if has_bytes { "bits per byte" } else { "nats per token" };
    let over = if watched.over_time { "time" } else { "training tokens" };
    let chart = Chart::new(sets)
        .block(Block::bordered().title(format!(" {}: {unit} over {over} ", run.name)))
        .x_axis(Axis::default().bounds([first, last.max(first + 1e-9)]).labels([
            number(first),
            number(middle),
            number(last),
        ]))
        .y_axis(Axis::default().bounds([low, high]).labels([
            format!("{low:.3}"),
            format!("{:.3}", f64::midpoint(low, high)),
            format!("{high:.3}"),
        ]));
    frame.render_widget(chart, area);
}
