//! Learning curves of one run, as SVG and as PNG.
//!
//! The upper panel shows the loss against training tokens: every update thin and pale, their running mean
//! over it, validations as points joined by a line. The unit is bits per source byte where byte lengths are
//! known, else nats per token. The lower panel shows the learning rate. Colours are from a palette that
//! colour-blind readers can tell apart, and the font is bundled, so that no font of the machine is needed.

use std::ops::Range;
use std::path::Path;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;

use crate::error::Error;
use crate::events::Event;
use crate::folder::RunFolder;

const FONT: &[u8] = include_bytes!("../assets/OpenSans-Latin.ttf");
const SIZE_PIXELS: (u32, u32) = (1080, 720);
const PALE: RGBColor = RGBColor(168, 196, 219);
const BLUE: RGBColor = RGBColor(0, 114, 178);
const VERMILION: RGBColor = RGBColor(213, 94, 0);
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// The points of a run's curves; every `x` is training tokens.
#[derive(Debug, Default)]
struct Curves {
    unit: &'static str,
    training: Vec<(f64, f64)>,
    running: Vec<(f64, f64)>,
    validation: Vec<(f64, f64)>,
    learning_rate: Vec<(f64, f64)>,
}

/// Draws `curves.svg` and `curves.png` of a run folder. A run without a single update has no curves.
///
/// # Errors
///
/// A file that cannot be written.
pub fn draw(folder: &RunFolder, events: &[Event], title: &str) -> Result<(), Error> {
    let curves = Curves::new(events);
    if curves.training.is_empty() {
        return Ok(());
    }
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // The bundled font is valid, as every test that draws shows.
        let _ = register_font("sans-serif", FontStyle::Normal, FONT);
    });
    let svg = folder.curves("svg");
    curves.draw(SVGBackend::new(&svg, SIZE_PIXELS).into_drawing_area(), title, &svg)?;
    let png = folder.curves("png");
    curves.draw(BitMapBackend::new(&png, SIZE_PIXELS).into_drawing_area(), title, &png)
}

impl Curves {
    fn new(events: &[Event]) -> Self {
        let bpb = events.iter().all(|event| match event {
            Event::Update(update) => update.skipped || update.bpb.is_some(),
            Event::Validation(validation) => validation.bpb.is_some(),
            _ => true,
        });
        let unit = if bpb { "bits per byte" } else { "loss, nats per token" };
        let mut curves = Self { unit, ..Self::default() };
        for event in events {
            match event {
                Event::Update(update) if !update.skipped => {
                    let x = update.tokens as f64;
                    let y = update.bpb.filter(|_| bpb).unwrap_or(update.loss_nats);
                    curves.training.push((x, y));
                    curves.learning_rate.push((x, update.learning_rate));
                }
                Event::Validation(validation) => {
                    let y = validation.bpb.filter(|_| bpb).unwrap_or(validation.loss_nats);
                    curves.validation.push((validation.tokens as f64, y));
                }
                _ => {}
            }
        }
        curves.running = running_mean(&curves.training);
        curves
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: DrawingArea<B, Shift>,
        title: &str,
        file: &Path,
    ) -> Result<(), Error> {
        self.try_draw(&area, title)
            .and_then(|()| area.present())
            .map_err(|error| Error::Picture { file: file.to_owned(), message: error.to_string() })
    }

    fn try_draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        title: &str,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        area.fill(&WHITE)?;
        let (upper, lower) = area.split_vertically(SIZE_PIXELS.1 * 7 / 10);
        let last =
            self.training.iter().chain(&self.validation).map(|&(x, _)| x).fold(1.0, f64::max);
        self.draw_loss(&upper, title, 0.0..last)?;
        self.draw_learning_rate(&lower, 0.0..last)
    }

    fn draw_loss<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        title: &str,
        tokens: Range<f64>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let range = padded(self.training.iter().chain(&self.validation).map(|&(_, y)| y));
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 24).into_font().color(&INK))
            .margin(16)
            .x_label_area_size(28)
            .y_label_area_size(76)
            .build_cartesian_2d(tokens, range)?;
        chart
            .configure_mesh()
            .y_desc(self.unit)
            .x_label_formatter(&|&x| quantity(x))
            .y_label_formatter(&|&y| format!("{y:.2}"))
            .label_style(("sans-serif", 16).into_font().color(&INK))
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        let line = |color: RGBColor, width| ShapeStyle::from(&color).stroke_width(width);
        let swatch = |color: RGBColor, width| {
            move |(x, y): (i32, i32)| {
                PathElement::new(
                    [(x, y), (x + 22, y)],
                    ShapeStyle::from(&color).stroke_width(width),
                )
            }
        };
        chart
            .draw_series(LineSeries::new(self.training.iter().copied(), line(PALE, 1)))?
            .label("training, each update")
            .legend(swatch(PALE, 2));
        chart
            .draw_series(LineSeries::new(self.running.iter().copied(), line(BLUE, 2)))?
            .label("training, running mean")
            .legend(swatch(BLUE, 2));
        chart
            .draw_series(LineSeries::new(self.validation.iter().copied(), line(VERMILION, 2)))?
            .label("validation")
            .legend(swatch(VERMILION, 3));
        let points = self.validation.iter().map(|&point| Circle::new(point, 4, VERMILION.filled()));
        chart.draw_series(points)?;
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .label_font(("sans-serif", 16).into_font().color(&INK))
            .background_style(WHITE.mix(0.9))
            .border_style(GRID)
            .draw()
    }

    fn draw_learning_rate<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        tokens: Range<f64>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let peak = self.learning_rate.iter().map(|&(_, rate)| rate).fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(76)
            .build_cartesian_2d(tokens, 0.0..peak * 1.1)?;
        chart
            .configure_mesh()
            .x_desc("training tokens")
            .y_desc("learning rate")
            .y_labels(4)
            .x_label_formatter(&|&x| quantity(x))
            .y_label_formatter(&|&y| if y == 0.0 { "0".into() } else { format!("{y:.0e}") })
            .label_style(("sans-serif", 16).into_font().color(&INK))
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        let style = ShapeStyle::from(&BLUE).stroke_width(2);
        chart.draw_series(LineSeries::new(self.learning_rate.iter().copied(), style))?;
        Ok(())
    }
}

/// Exponential running mean with a horizon of a hundredth of the points, corrected for its start.
fn running_mean(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let keep = 1.0 - 1.0 / (points.len() as f64 / 100.0).max(1.0);
    let (mut sum, mut weight) = (0.0, 0.0);
    let mean = |&(x, y): &(f64, f64)| {
        sum = keep * sum + y;
        weight = keep * weight + 1.0;
        (x, sum / weight)
    };
    points.iter().map(mean).collect()
}

/// The range of the values with a twentieth of it added at both ends.
fn padded(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(y), high.max(y)));
    let pad = ((high - low) / 20.0).max(high.abs() * 1e-3).max(1e-6);
    low - pad..high + pad
}

/// A count with a decimal prefix, such as `1.5 M`.
fn quantity(x: f64) -> String {
    match x {
        _ if x >= 1e9 => format!("{:.1} G", x / 1e9),
        _ if x >= 1e6 => format!("{:.1} M", x / 1e6),
        _ if x >= 1e3 => format!("{:.0} k", x / 1e3),
        _ => format!("{x:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_mean_of_a_constant_is_the_constant() {
        let points: Vec<(f64, f64)> = (0..200).map(|i| (f64::from(i), 2.5)).collect();
        assert!(running_mean(&points).iter().all(|&(_, y)| (y - 2.5).abs() < 1e-12));
    }

    #[test]
    fn quantities_read_well() {
        let texts: Vec<String> = [0.0, 950.0, 2_000.0, 1.5e6, 2.35e9].map(quantity).into();
        assert_eq!(texts, ["0", "950", "2 k", "1.5 M", "2.4 G"]);
    }
}
