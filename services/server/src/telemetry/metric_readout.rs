//! Values of recorded metrics, so that the API and a scrape report the same numbers.

use metrics_exporter_prometheus::PrometheusHandle;

/// Values of all metrics at one instant.
pub(crate) struct MetricReadout(String);

impl MetricReadout {
    /// Reads the recorded values.
    pub(crate) fn read(recorder: &PrometheusHandle) -> Self {
        Self(recorder.render())
    }

    /// Returns the number of errors of the disk cache since the start.
    pub(crate) fn disk_cache_errors(&self) -> f64 {
        self.value("forebay_cache_errors_total", "tier=\"disk\"").unwrap_or(0.0)
    }

    /// Returns the sum over the samples of the metric `name` whose labels contain `label`; `None` without such samples.
    pub(crate) fn value(&self, name: &str, label: &str) -> Option<f64> {
        let mut sum = None;
        for line in self.0.lines() {
            let Some(rest) = line.strip_prefix(name) else { continue };
            let Some((labels, value)) = rest.rsplit_once(' ') else { continue };
            let is_sample = labels.is_empty() || labels.starts_with('{');
            if is_sample && labels.contains(label) {
                *sum.get_or_insert(0.0) += value.parse::<f64>().unwrap_or(0.0);
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_with_the_same_name_and_label_are_added_up() {
        let text = "# TYPE a counter\na{tier=\"disk\",kind=\"x\"} 1\na{tier=\"disk\",kind=\"y\"} 2.5\na{tier=\"memory\"} 7\nab 9\nb 4\n";
        let readout = MetricReadout(text.to_owned());
        assert_eq!(readout.value("a", "tier=\"disk\""), Some(3.5));
        assert_eq!(readout.value("b", ""), Some(4.0));
        assert_eq!(readout.value("c", ""), None);
    }
}
