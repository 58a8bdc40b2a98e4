//! Rows of intervals: a mean with its interval, the single values behind it, and a band of noise.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::{Drawing, GRID, MARGIN_PIXELS, PALETTE, TITLE_PIXELS, draw_legend, draw_title, padded};
use super::{Style, decimal, text};

/// Pixels of a row.
const ROW_PIXELS: u32 = 46;

/// One row.
#[derive(Clone, Debug)]
pub struct IntervalRow {
    /// What it is about.
    pub label: String,
    /// The middle.
    pub mean: f64,
    /// From the middle to each end, if it is known.
    pub half_width: Option<f64>,
    /// The values that the mean is of.
    pub values: Vec<f64>,
}

/// A picture of rows.
#[derive(Clone, Debug)]
pub struct IntervalFigure {
    /// What it shows.
    pub title: String,
    /// The label of the axis, with its unit.
    pub label: String,
    /// The rows, the uppermost first; at least one.
    pub rows: Vec<IntervalRow>,
    /// The band around zero that is noise, to each side.
    pub noise: Option<f64>,
    /// What the marks of an interval, a value and the band stand for.
    pub legend: [String; 3],
}

impl Drawing for IntervalFigure {
    fn size_pixels(&self) -> (u32, u32) {
        (1080, TITLE_PIXELS as u32 + 140 + ROW_PIXELS * self.rows.len() as u32)
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        draw_title(area, &self.title)?;
        let [interval, value, band] = self.legend.clone();
        let mut legend = vec![
            (interval, Style { width: 4, ..Style::numbered(0) }),
            (value, Style { width: 3, dash: Some((4, 6)), ..Style::numbered(1) }),
        ];
        let grey = Style { color: GRID, width: 14, ..Style::numbered(0) };
        legend.extend(self.noise.map(|_| (band, grey)));
        let top = draw_legend(area, &legend, TITLE_PIXELS)?;
        let (_, area) = area.split_vertically(top);
        self.draw_rows(&area)
    }
}

impl IntervalFigure {
    fn draw_rows<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let count = self.rows.len() as i32;
        let label_width = |row: &IntervalRow| area.estimate_text_size(&row.label, &text());
        let widths = self.rows.iter().map(label_width).collect::<Result<Vec<_>, _>>()?;
        let widest = widths.into_iter().map(|(width, _)| width).max().unwrap_or(0) + 40;
        let ends = self.rows.iter().flat_map(|row| {
            let half = row.half_width.unwrap_or(0.0);
            row.values.iter().copied().chain([row.mean - half, row.mean + half])
        });
        let band = self.noise.into_iter().flat_map(|noise| [-noise, noise]);
        let range = padded(ends.chain(band).chain([0.0]));
        let mut chart = ChartBuilder::on(area)
            .margin(MARGIN_PIXELS)
            .x_label_area_size(48)
            .y_label_area_size(widest.min(420))
            .build_cartesian_2d(range.clone(), (0..count - 1).into_segmented())?;
        // The rows are counted from below; the first one stands on top.
        let row_of = |value: &SegmentValue<i32>| match value {
            SegmentValue::CenterOf(index) => usize::try_from(count - 1 - index).ok(),
            _ => None,
        };
        let label = |value: &SegmentValue<i32>| {
            row_of(value)
                .and_then(|row| self.rows.get(row))
                .map_or_else(String::new, |row| row.label.clone())
        };
        chart
            .configure_mesh()
            .x_desc(&self.label)
            .y_labels(self.rows.len())
            .x_label_formatter(&|&x| decimal(x, &range))
            .y_label_formatter(&label)
            .label_style(text())
            .axis_desc_style(text())
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        let (low, high) = (SegmentValue::Exact(0), SegmentValue::Exact(count));
        if let Some(noise) = self.noise {
            let band = [(-noise, low.clone()), (noise, high.clone())];
            chart.draw_series([Rectangle::new(band, GRID.filled())])?;
        }
        let zero = [(0.0, low), (0.0, high)];
        chart.draw_series([PathElement::new(zero, BLACK.mix(0.6).stroke_width(1))])?;
        for (index, row) in self.rows.iter().enumerate() {
            let at = SegmentValue::CenterOf(count - 1 - index as i32);
            let half = row.half_width.unwrap_or(0.0);
            let ends = [(row.mean - half, at.clone()), (row.mean + half, at.clone())];
            chart.draw_series([PathElement::new(ends, PALETTE[0].stroke_width(4))])?;
            chart.draw_series([Circle::new((row.mean, at.clone()), 7, PALETTE[0].filled())])?;
            let values = row.values.iter();
            let value = |&x: &f64| Circle::new((x, at.clone()), 4, PALETTE[1].stroke_width(2));
            chart.draw_series(values.map(value))?;
        }
        Ok(())
    }
}
