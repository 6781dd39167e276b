//! Samples, and the rows of a table.

/// Whether to take only a few samples, to try the programs.
pub fn quick() -> bool {
    std::env::var_os("QUICK").is_some_and(|value| value == "1")
}

/// Returns the full number of samples, or a few if only the programs are tried.
pub fn many(full: usize, few: usize) -> usize {
    if quick() { few } else { full }
}

/// Values from repeated measurements of the same quantity.
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn add(&mut self, value: f64) {
        let at = self.0.partition_point(|v| *v <= value);
        self.0.insert(at, value);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the value that this fraction of all does not exceed (nearest rank).
    pub fn quantile(&self, part: f64) -> f64 {
        let rank = (part * self.0.len() as f64).ceil() as usize;
        *self.0.get(rank.saturating_sub(1)).unwrap_or(&f64::NAN)
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub fn least(&self) -> f64 {
        self.quantile(0.0)
    }

    pub fn most(&self) -> f64 {
        self.quantile(1.0)
    }

    /// Formats median, minimum and maximum of a few values.
    pub fn few(&self, unit: &str) -> String {
        let (least, most) = (short(self.least()), short(self.most()));
        if least == most {
            return format!("{least} {unit}");
        }
        format!("{} ({least} to {most}) {unit}", short(self.median()))
    }

    /// Formats median, 99th percentile and quartiles.
    pub fn text(&self, unit: &str) -> String {
        format!(
            "{} / {} ({} to {}) {unit}",
            short(self.median()),
            short(self.quantile(0.99)),
            short(self.quantile(0.25)),
            short(self.quantile(0.75)),
        )
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut all: Vec<f64> = values.into_iter().collect();
        all.sort_by(f64::total_cmp);
        Samples(all)
    }
}

/// Formats a value with three significant digits.
pub fn short(value: f64) -> String {
    let size = value.abs();
    if size >= 1000.0 {
        let whole = format!("{value:.0}");
        let (sign, digits) = whole
            .strip_prefix('-')
            .map_or(("", whole.as_str()), |digits| ("-", digits));
        let mut text = String::new();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at) % 3 == 0 {
                text.push(',');
            }
            text.push(digit);
        }
        format!("{sign}{text}")
    } else if size >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Quantity that was measured, with its floor and its peer, if it has them. For a herd these are
/// other delays.
#[derive(Debug)]
struct Row {
    what: String,
    ours: String,
    floor: String,
    peer: String,
    bar: String,
}

#[derive(Debug, Default)]
pub struct Table(Vec<Row>);

impl Table {
    pub fn add(&mut self, what: &str, ours: &str, floor: &str, peer: &str, bar: &str) {
        for text in [what, ours, floor, peer, bar] {
            debug_assert!(!text.contains(['|', '\n']));
        }
        eprintln!("  {what}: {ours}; floor {floor}; peer {peer}; bar {bar}");
        self.0.push(Row {
            what: what.into(),
            ours: ours.into(),
            floor: floor.into(),
            peer: peer.into(),
            bar: bar.into(),
        });
    }

    /// Returns the rows as Markdown.
    pub fn text(&self) -> String {
        self.0
            .iter()
            .map(|row| {
                format!(
                    "| {} | {} | {} | {} | {} |\n",
                    row.what, row.ours, row.floor, row.peer, row.bar
                )
            })
            .collect()
    }
}

/// Formats whether a goal was reached, for the table.
pub fn verdict(bar: &str, reached: bool) -> String {
    format!("{bar}: {}", if reached { "reached" } else { "**missed**" })
}
