//! Plots as SVG: horizontal bars, from the least to the most of each.

use std::fmt::Write;

use crate::stats::Spread;

const WIDTH: f64 = 900.0;
const LABEL_WIDTH: f64 = 220.0;
const VALUE_WIDTH: f64 = 90.0;
const ROW_HEIGHT: f64 = 28.0;
const TOP: f64 = 64.0;
const BAR_HEIGHT: f64 = 18.0;

/// One bar.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: Spread,
    /// Drawn in the colour of what the plot is about.
    pub(crate) is_ours: bool,
}

/// A plot of `bars`, whose values are in `unit`; whiskers reach from the least to the most value.
pub(crate) fn bars(title: &str, subtitle: &str, unit: &str, bars: &[Bar]) -> String {
    let most = bars.iter().map(|bar| bar.value.most).fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) / most;
    let height = TOP + ROW_HEIGHT * bars.len() as f64 + 16.0;
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="13">
<rect width="100%" height="100%" fill="#fff"/>
<text x="12" y="24" font-size="16" font-weight="600">{}, {}</text>
<text x="12" y="44" fill="#666">{}</text>
"##,
        escaped(title),
        escaped(unit),
        escaped(subtitle)
    );
    for (row, bar) in bars.iter().enumerate() {
        let top = TOP + ROW_HEIGHT * row as f64;
        let (middle, baseline) = (top + BAR_HEIGHT / 2.0, top + BAR_HEIGHT - 4.0);
        let end = LABEL_WIDTH + bar.value.median * scale;
        let colour = if bar.is_ours { "#0b6e99" } else { "#b8c4cc" };
        let (least, most) = (LABEL_WIDTH + bar.value.least * scale, LABEL_WIDTH + bar.value.most * scale);
        write!(
            svg,
            r##"<text x="{:.1}" y="{baseline:.1}" text-anchor="end">{}</text>
<rect x="{LABEL_WIDTH}" y="{top:.1}" width="{:.1}" height="{BAR_HEIGHT}" fill="{colour}"/>
<path d="M{least:.1} {middle:.1}H{most:.1}" stroke="#333" stroke-width="1.5"/>
<text x="{:.1}" y="{baseline:.1}">{}</text>
"##,
            LABEL_WIDTH - 8.0,
            escaped(&bar.label),
            end - LABEL_WIDTH,
            most + 8.0,
            short(bar.value.median)
        )
        .expect("writing to a string does not fail");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Three digits that count.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_and_its_value_are_drawn() {
        let value = Spread { median: 12.34, least: 10.0, most: 15.0 };
        let bar = Bar { label: "a < b".to_owned(), value, is_ours: true };
        let svg = bars("title", "machine", "MB/s", &[bar]);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt; b") && svg.contains("12.3"));
    }
}
