//! Pictures: panels of lines over two axes, and intervals in rows, as SVG and as PNG.
//!
//! One text of drawing serves both kinds of file. Colours are from a palette that colour-blind readers can tell
//! apart, further lines are dashed; the legend stands above the panels in rows of its own, where it hides
//! nothing; the font is bundled, so that no font of the machine is needed. What a picture shows is decided by its
//! callers: [`crate::curves`] for one run, [`crate::report`] for several.

mod intervals;
mod series;

use std::ops::Range;
use std::path::Path;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use tape::aside::write_file;

use crate::error::Error;

pub use intervals::{IntervalFigure, IntervalRow};
pub use series::{clipped, padded, running_mean, thin, thin_envelope};

const FONT: &[u8] = include_bytes!("../assets/OpenSans-Latin.ttf");
/// The colour of text.
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
/// Okabe and Ito's colours without black and yellow, the strongest first.
pub const PALETTE: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

const MARGIN_PIXELS: i32 = 16;
const TITLE_PIXELS: i32 = 44;
const TEXT_PIXELS: i32 = 16;
const LEGEND_ROW_PIXELS: i32 = 24;
const SWATCH_PIXELS: i32 = 34;

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Style {
    /// Its colour.
    pub color: RGBColor,
    /// From 0, which cannot be seen, to 1.
    pub opacity: f64,
    /// Its width in pixels.
    pub width: u32,
    /// Lengths of a dash and of the gap after it, in pixels; none for a line without gaps.
    pub dash: Option<(i32, i32)>,
}

impl Style {
    /// The style of line number `index` of a picture: colours first, then dashes.
    #[must_use]
    pub fn numbered(index: usize) -> Self {
        let dash = match index / PALETTE.len() % 3 {
            0 => None,
            1 => Some((8, 5)),
            _ => Some((2, 4)),
        };
        Self { color: PALETTE[index % PALETTE.len()], opacity: 1.0, width: 2, dash }
    }

    /// The same, pale and thin.
    #[must_use]
    pub fn pale(self) -> Self {
        Self { opacity: 0.25, width: 1, dash: None, ..self }
    }

    fn shape(self) -> ShapeStyle {
        ShapeStyle::from(&self.color.mix(self.opacity)).stroke_width(self.width)
    }
}

/// A line through points.
#[derive(Clone, Debug)]
pub struct Line {
    /// The points, by rising `x`.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub style: Style,
    /// Whether each point is marked.
    pub marked: bool,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows, with its unit.
    pub label: String,
    /// From its start to its end.
    pub range: Range<f64>,
    /// How its numbers are written.
    pub numbers: Numbers,
}

/// How the numbers of an axis are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Counts with a decimal prefix.
    Quantity,
    /// Seconds, in the unit that suits the end of the axis.
    Seconds,
    /// As many digits as tell the marks of the axis apart.
    Decimal,
    /// A digit and a power of ten.
    Exponent,
}

impl Numbers {
    fn write(self, x: f64, range: &Range<f64>) -> String {
        match self {
            Self::Quantity => quantity(x),
            Self::Seconds => seconds(x, range.end),
            Self::Decimal => decimal(x, range),
            Self::Exponent if x == 0.0 => "0".into(),
            Self::Exponent => format!("{x:.0e}"),
        }
    }
}

/// A number with as many digits as tell the marks of a range apart; what is 0 to them has no sign.
fn decimal(x: f64, range: &Range<f64>) -> String {
    let digits = digits(range);
    let text = format!("{x:.digits$}");
    let is_zero = text.parse() == Ok(0.0);
    if is_zero { format!("{:.digits$}", 0.0) } else { text }
}

/// Digits after the point that tell apart some ten marks in a range.
fn digits(range: &Range<f64>) -> usize {
    let step = (range.end - range.start).abs() / 10.0;
    (-step.log10().floor()).clamp(1.0, 9.0) as usize
}

/// Lines over two axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Its lines, the lowest first.
    pub lines: Vec<Line>,
    /// Its share of the height, in any unit.
    pub share: u32,
}

/// A picture of panels, one below the other.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it shows.
    pub title: String,
    /// What stands for what.
    pub legend: Vec<(String, Style)>,
    /// Its panels.
    pub panels: Vec<Panel>,
    /// Width and height.
    pub size_pixels: (u32, u32),
}

/// Something that can be drawn with any backend.
pub trait Drawing {
    /// Width and height.
    fn size_pixels(&self) -> (u32, u32);

    /// Draws it.
    ///
    /// # Errors
    ///
    /// What the backend says.
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>>;
}

/// Writes a drawing as `file.svg` and `file.png`; the text of the SVG.
///
/// # Errors
///
/// A file that cannot be written.
pub fn write(drawing: &impl Drawing, file: &Path) -> Result<String, Error> {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // The bundled font is valid, as every test that draws shows.
        let _ = register_font("sans-serif", FontStyle::Normal, FONT);
    });
    let failed = |path: &Path, message: String| Error::Picture { file: path.to_owned(), message };
    let svg_path = file.with_extension("svg");
    let mut svg = String::new();
    render(drawing, SVGBackend::with_string(&mut svg, drawing.size_pixels()))
        .map_err(|message| failed(&svg_path, message))?;
    write_file(&svg_path, svg.as_bytes())?;
    let png = file.with_extension("png");
    render(drawing, BitMapBackend::new(&png, drawing.size_pixels()))
        .map_err(|message| failed(&png, message))?;
    Ok(svg)
}

fn render<B: DrawingBackend>(drawing: &impl Drawing, backend: B) -> Result<(), String> {
    let area = backend.into_drawing_area();
    let drawn = area.fill(&WHITE).and_then(|()| drawing.draw(&area)).and_then(|()| area.present());
    drawn.map_err(|error| error.to_string())
}

impl Drawing for Figure {
    fn size_pixels(&self) -> (u32, u32) {
        self.size_pixels
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        draw_title(area, &self.title)?;
        let mut top = draw_legend(area, &self.legend, TITLE_PIXELS)?;
        let height = self.size_pixels.1 as i32 - top;
        let shares: u32 = self.panels.iter().map(|panel| panel.share).sum();
        let mut rest = area.clone();
        for panel in &self.panels {
            let below = top + height * panel.share as i32 / shares as i32;
            let from_top = rest.get_base_pixel().1;
            let (_, from) = rest.split_vertically(top - from_top);
            let (here, after) = from.split_vertically(below - top);
            panel.draw(&here)?;
            rest = after;
            top = below;
        }
        Ok(())
    }
}

impl Panel {
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let mut chart = ChartBuilder::on(area)
            .margin(MARGIN_PIXELS)
            .x_label_area_size(48)
            .y_label_area_size(76)
            .build_cartesian_2d(self.x.range.clone(), self.y.range.clone())?;
        let labels = (area.dim_in_pixel().1 / 45).clamp(3, 9) as usize;
        chart
            .configure_mesh()
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .y_labels(labels)
            .x_label_formatter(&|&x| self.x.numbers.write(x, &self.x.range))
            .y_label_formatter(&|&y| self.y.numbers.write(y, &self.y.range))
            .label_style(text())
            .axis_desc_style(text())
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for line in &self.lines {
            let shape = line.style.shape();
            // A line without width is one of points alone.
            let shown = if line.style.width > 0 { &line.points[..] } else { &[] };
            for piece in clipped(shown, &self.y.range) {
                match line.style.dash {
                    None => chart.draw_series(LineSeries::new(piece, shape))?,
                    Some((dash, gap)) => {
                        chart.draw_series(DashedLineSeries::new(piece, dash, gap, shape))?
                    }
                };
            }
            if line.marked {
                let (range, color) = (&self.y.range, line.style.color.mix(line.style.opacity));
                let shown = line.points.iter().filter(|(_, y)| range.contains(y));
                chart.draw_series(shown.map(|&point| Circle::new(point, 3, color.filled())))?;
            }
        }
        Ok(())
    }
}

fn text() -> TextStyle<'static> {
    ("sans-serif", TEXT_PIXELS).into_font().color(&INK)
}

fn draw_title<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let style = ("sans-serif", 24).into_font().color(&INK);
    let style = style.pos(Pos::new(HPos::Center, VPos::Top));
    area.draw_text(title, &style, (area.dim_in_pixel().0 as i32 / 2, 12))
}

/// Draws entries in rows from `top` on; where what follows may begin.
fn draw_legend<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    entries: &[(String, Style)],
    top: i32,
) -> Result<i32, DrawingAreaErrorKind<B::ErrorType>> {
    let left = MARGIN_PIXELS + 76;
    let right = area.dim_in_pixel().0 as i32 - MARGIN_PIXELS;
    let (mut x, mut y) = (left, top);
    for (label, style) in entries {
        let width = SWATCH_PIXELS + area.estimate_text_size(label, &text())?.0 as i32 + 24;
        if x + width > right && x > left {
            (x, y) = (left, y + LEGEND_ROW_PIXELS);
        }
        let middle = y + LEGEND_ROW_PIXELS / 2;
        let ends = [(x, middle), (x + SWATCH_PIXELS - 8, middle)];
        let shape = style.shape().stroke_width(style.width.max(2));
        match style.dash {
            None => area.draw(&PathElement::new(ends, shape))?,
            Some((dash, gap)) => {
                area.draw(&DashedPathElement::new(ends, dash, gap, shape))?;
            }
        }
        let style = text().pos(Pos::new(HPos::Left, VPos::Center));
        area.draw_text(label, &style, (x + SWATCH_PIXELS, middle))?;
        x += width;
    }
    Ok(if entries.is_empty() { top } else { y + LEGEND_ROW_PIXELS })
}

/// A count with a decimal prefix, such as `1.5 M`.
#[must_use]
pub fn quantity(x: f64) -> String {
    match x {
        _ if x >= 1e9 => format!("{:.1} G", x / 1e9),
        _ if x >= 1e6 => format!("{:.1} M", x / 1e6),
        _ if x >= 1e4 => format!("{:.0} k", x / 1e3),
        _ if x >= 1e3 => format!("{:.1} k", x / 1e3),
        _ => format!("{x:.0}"),
    }
}

/// Seconds with the unit that suits an axis of that end, such as `1.5 h`.
#[must_use]
pub fn seconds(x: f64, end: f64) -> String {
    match end {
        _ if end >= 7200.0 => format!("{:.1} h", x / 3600.0),
        _ if end >= 120.0 => format!("{:.1} min", x / 60.0),
        _ if end >= 20.0 => format!("{x:.0} s"),
        _ if end >= 1.0 => format!("{x:.1} s"),
        _ => format!("{:.0} ms", x * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_well() {
        let texts: Vec<String> = [0.0, 950.0, 2_000.0, 1.5e6, 2.35e9].map(quantity).into();
        assert_eq!(texts, ["0", "950", "2.0 k", "1.5 M", "2.4 G"]);
        let texts = [(0.02, 0.1), (0.5, 1.5), (45.0, 60.0), (150.0, 300.0), (9000.0, 9000.0)];
        let texts = texts.map(|(x, end)| seconds(x, end));
        assert_eq!(texts, ["20 ms", "0.5 s", "45 s", "2.5 min", "2.5 h"]);
        assert_eq!([-1e-12, -0.5].map(|x| decimal(x, &(-1.0..1.0))), ["0.0", "-0.5"]);
        assert_eq!([digits(&(2.0..5.0)), digits(&(2.0..2.05)), digits(&(0.0..90.0))], [1, 3, 1]);
    }

    #[test]
    fn eighteen_lines_can_be_told_apart() {
        let styles: Vec<Style> = (0..18).map(Style::numbered).collect();
        for (index, style) in styles.iter().enumerate() {
            assert!(!styles[..index].contains(style), "{index}");
        }
    }
}
