//! Charts of results. A chart is a part of the JSON of a result, and is drawn as SVG.

use std::fmt::Display;

use anyhow::anyhow;
use plotters::{
    coord::Shift,
    element::DashedPathElement,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use serde::{Deserialize, Serialize};

use crate::stats::Spread;

const WIDTH: u32 = 900;
const FONT: &str = "sans-serif";
/// Font sizes. plotters divides them by 1.24 to get pixels.
const TITLE_SIZE: u32 = 22;
const TEXT_SIZE: u32 = 16;
const GRAY: RGBColor = RGBColor(0x66, 0x66, 0x66);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
const FOREBAY: RGBColor = RGBColor(0x0b, 0x6e, 0x99);
const OTHERS: RGBColor = RGBColor(0xb8, 0xc4, 0xcc);
/// Okabe and Ito's palette, which is distinguishable with color vision deficiencies.
const PALETTE: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
];

/// A chart of one result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// The machine, or another condition of the measurement.
    pub(crate) subtitle: String,
    pub(crate) content: Content,
}

/// The data of a chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Content {
    /// Horizontal bars of medians, with a line from the minimum to the maximum.
    Bars { unit: String, bars: Vec<Bar> },
    /// Curves over a linear x axis and a logarithmic y axis.
    Curves { x: String, y: String, curves: Vec<Curve> },
}

/// One bar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: Spread,
    /// True for Forebay, which has another color than the systems compared with it.
    pub(crate) is_forebay: bool,
}

/// One curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Curve {
    pub(crate) label: String,
    /// Curves of one group have one color.
    pub(crate) group: usize,
    /// Length of dashes in pixels. 0 for a solid line.
    pub(crate) dash: u32,
    /// Points with positive y, from left to right.
    pub(crate) points: Vec<(f64, f64)>,
}

impl Bar {
    /// Creates a bar from repeated measurements. `None` without measurements.
    pub(crate) fn of(
        label: impl Display,
        values: impl IntoIterator<Item = f64>,
        is_forebay: bool,
    ) -> Option<Self> {
        Some(Self { label: label.to_string(), value: Spread::of(values)?, is_forebay })
    }
}

impl Chart {
    /// Creates a chart of bars with values in `unit`. Bars without measurements are omitted.
    pub(crate) fn bars(
        title: &str,
        subtitle: impl Display,
        unit: &str,
        bars: impl IntoIterator<Item = Option<Bar>>,
    ) -> Self {
        let bars = bars.into_iter().flatten().collect();
        let content = Content::Bars { unit: unit.to_owned(), bars };
        Self { title: title.to_owned(), subtitle: subtitle.to_string(), content }
    }

    /// Draws the chart as SVG.
    ///
    /// # Errors
    ///
    /// The chart has no bars or points, or cannot be drawn.
    pub(crate) fn svg(&self) -> anyhow::Result<String> {
        let mut svg = String::new();
        {
            let height = match &self.content {
                Content::Bars { bars, .. } => 120 + 30 * bars.len() as u32,
                Content::Curves { .. } => 520,
            };
            let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            root.fill(&WHITE)?;
            root.draw(&Text::new(self.title.as_str(), (12, 12), (FONT, TITLE_SIZE).into_font()))?;
            root.draw(&Text::new(
                self.subtitle.as_str(),
                (12, 38),
                (FONT, TEXT_SIZE).into_font().color(&GRAY),
            ))?;
            match &self.content {
                Content::Bars { unit, bars } => draw_bars(&root, unit, bars)?,
                Content::Curves { x, y, curves } => draw_curves(&root, x, y, curves)?,
            }
            root.present()?;
        }
        Ok(svg)
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_bars(root: &Area<'_>, unit: &str, bars: &[Bar]) -> anyhow::Result<()> {
    let max = bars.iter().map(|bar| bar.value.max).fold(f64::MIN_POSITIVE, f64::max);
    if bars.is_empty() || !max.is_finite() {
        return Err(anyhow!("the chart has no bars"));
    }
    let mut chart = ChartBuilder::on(root)
        .margin_top(60)
        .margin_right(80)
        .set_label_area_size(LabelAreaPosition::Left, 230)
        .set_label_area_size(LabelAreaPosition::Bottom, 50)
        .build_cartesian_2d(0.0..max * 1.02, bars.len() as f64..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .label_style((FONT, TEXT_SIZE))
        .x_desc(unit)
        .x_label_formatter(&|value: &f64| short(*value))
        .draw()?;
    let label = (FONT, TEXT_SIZE).into_font().color(&BLACK);
    for (row, bar) in (0u32..).zip(bars) {
        let top = f64::from(row) + 0.18;
        let (middle, bottom) = (f64::from(row) + 0.5, f64::from(row) + 0.82);
        let Spread { median, min, max } = bar.value;
        let color = if bar.is_forebay { FOREBAY } else { OTHERS };
        chart.draw_series([Rectangle::new([(0.0, top), (median, bottom)], color.filled())])?;
        chart.draw_series([PathElement::new([(min, middle), (max, middle)], BLACK)])?;
        let (x, y) = chart.backend_coord(&(0.0, middle));
        let right = label.clone().pos(Pos::new(HPos::Right, VPos::Center));
        root.draw(&Text::new(bar.label.as_str(), (x - 8, y), right))?;
        let (x, y) = chart.backend_coord(&(max, middle));
        let left = label.clone().pos(Pos::new(HPos::Left, VPos::Center));
        root.draw(&Text::new(short(median), (x + 8, y), left))?;
    }
    Ok(())
}

fn draw_curves(root: &Area<'_>, x: &str, y: &str, curves: &[Curve]) -> anyhow::Result<()> {
    let points = || curves.iter().flat_map(|curve| &curve.points).filter(|point| point.1 > 0.0);
    let right = points().map(|point| point.0).fold(f64::NAN, f64::max);
    let low = points().map(|point| point.1).fold(f64::NAN, f64::min);
    let high = points().map(|point| point.1).fold(f64::NAN, f64::max);
    if right.is_nan() || right <= 0.0 {
        return Err(anyhow!("the chart has no points"));
    }
    let (low, high) = (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil()));
    let mut chart = ChartBuilder::on(root)
        .margin_top(60)
        .margin_right(210)
        .set_label_area_size(LabelAreaPosition::Left, 60)
        .set_label_area_size(LabelAreaPosition::Bottom, 50)
        .build_cartesian_2d(0.0..right * 1.05, (low..high.max(low * 10.0)).log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .label_style((FONT, TEXT_SIZE))
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&|value: &f64| short(*value))
        .y_label_formatter(&|value: &f64| short(*value))
        .draw()?;
    for (row, curve) in (0i32..).zip(curves) {
        let color = PALETTE[curve.group % PALETTE.len()];
        let style = color.stroke_width(2);
        let points = || curve.points.iter().copied().filter(|point| point.1 > 0.0);
        let (from, to) = ((WIDTH as i32 - 195, 70 + 18 * row), (WIDTH as i32 - 167, 70 + 18 * row));
        if curve.dash == 0 {
            chart.draw_series([PathElement::new(points().collect::<Vec<_>>(), style)])?;
            root.draw(&PathElement::new([from, to], style))?;
        } else {
            let dashed = DashedPathElement::new(points().collect::<Vec<_>>(), curve.dash, 4, style);
            chart.draw_series([dashed])?;
            root.draw(&DashedPathElement::new([from, to], curve.dash, 4, style))?;
        }
        chart.draw_series(points().map(|point| Circle::new(point, 3, color.filled())))?;
        let left = (FONT, TEXT_SIZE).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
        root.draw(&Text::new(curve.label.as_str(), (to.0 + 8, to.1), left))?;
    }
    Ok(())
}

/// Formats a number with three significant digits.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_and_its_value_are_drawn() {
        let value = Spread { median: 12.34, min: 10.0, max: 15.0 };
        let bar = Bar { label: "a < b".to_owned(), value, is_forebay: true };
        let svg = Chart::bars("title", "machine", "MB/s", [Some(bar)]).svg().expect("a chart");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("12.3") && svg.contains("MB/s"), "{svg}");
    }

    #[test]
    fn every_curve_is_drawn() {
        let curve = |label: &str, dash| Curve {
            label: label.to_owned(),
            group: 1,
            dash,
            points: vec![(100.0, 1.5), (200.0, 30.0)],
        };
        let curves = vec![curve("64 rows", 0), curve("256 rows", 4)];
        let content = Content::Curves { x: "requests/s".to_owned(), y: "ms".to_owned(), curves };
        let chart = Chart { title: "title".to_owned(), subtitle: "machine".to_owned(), content };
        let svg = chart.svg().expect("a chart");
        assert!(svg.contains("64 rows") && svg.contains("256 rows") && svg.contains("requests/s"), "{svg}");
    }

    #[test]
    fn a_chart_survives_json() {
        let bars = [Bar::of("a", [1.0, 2.0], false)];
        let chart = Chart::bars("title", "machine", "s", bars);
        let text = serde_json::to_string(&chart).expect("serializable");
        assert_eq!(serde_json::from_str::<Chart>(&text).expect("well formed"), chart);
    }

    #[test]
    fn a_chart_without_data_is_an_error() {
        Chart::bars("title", "machine", "s", []).svg().expect_err("no bars");
    }
}
