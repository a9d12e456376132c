//! The frontier as SVG: p99 latency over answers a second, a line for each setting.

use std::fmt::Write;

use super::{Cell, Setting};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 200.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 50.0;
/// Told apart also by those who see few colours; lines of one size have one colour.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// Latency on a logarithmic scale.
pub(super) fn svg(subtitle: &str, cells: &[Cell]) -> String {
    let points: Vec<&Cell> = cells.iter().filter(|cell| cell.measured.answered > 0).collect();
    let most = points.iter().map(|cell| cell.measured.answers_per_second).fold(1.0, f64::max);
    let ms = |cell: &Cell| (cell.measured.p99 * 1e3).max(0.01);
    let least_ms = points.iter().map(|cell| ms(cell)).fold(f64::INFINITY, f64::min).min(1e6);
    let most_ms = points.iter().map(|cell| ms(cell)).fold(least_ms * 2.0, f64::max);
    let (low, high) = (least_ms.log10().floor(), most_ms.log10().ceil());
    let x = |rate: f64| LEFT + (WIDTH - LEFT - RIGHT) * rate / most;
    let y = |ms: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (ms.log10() - low) / (high - low).max(1.0);
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="12">
<rect width="100%" height="100%" fill="#fff"/>
<text x="12" y="24" font-size="16" font-weight="600">Batch queue: p99 latency (ms) over answers a second</text>
<text x="12" y="44" fill="#666">{subtitle}</text>
"##
    );
    let mut line = |text: String| svg.push_str(&text);
    for decade in low as i32..=high as i32 {
        let at = y(10f64.powi(decade));
        line(format!(
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            10f64.powi(decade)
        ));
    }
    for fifth in 0..=5 {
        let rate = most * f64::from(fifth) / 5.0;
        line(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{rate:.0}</text>\n",
            x(rate),
            HEIGHT - BOTTOM + 20.0
        ));
    }
    let mut settings: Vec<Setting> = Vec::new();
    for cell in &points {
        if !settings.contains(&cell.setting) {
            settings.push(cell.setting);
        }
    }
    let mut sizes: Vec<u64> = settings.iter().map(|setting| setting.max_batch_rows).collect();
    sizes.dedup();
    for (number, setting) in settings.iter().enumerate() {
        let size = sizes.iter().position(|size| *size == setting.max_batch_rows).unwrap_or(0);
        let colour = COLOURS[size % COLOURS.len()];
        let dash = setting.delay.map_or(0, |delay| 2 + delay.as_millis().min(12));
        let mut path = String::new();
        for cell in points.iter().filter(|cell| cell.setting == *setting) {
            let (x, y) = (x(cell.measured.answers_per_second), y(ms(cell)));
            let step = if path.is_empty() { 'M' } else { 'L' };
            // Writing to a string does not fail.
            let _ = write!(path, "{step}{x:.1} {y:.1}");
            line(format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>\n"));
        }
        let (left, at) = (WIDTH - RIGHT + 16.0, TOP + 18.0 * number as f64);
        let stroke =
            format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" stroke-dasharray=\"{dash}\"");
        line(format!("<path d=\"{path}\" {stroke}/><path d=\"M{left} {at}h24\" {stroke}/>\n"));
        line(format!("<text x=\"{:.1}\" y=\"{:.1}\">{setting}</text>\n", left + 30.0, at + 4.0));
    }
    svg.push_str("</svg>\n");
    svg
}
