//! Plots, as CSV and as a picture.

use std::fmt::Display;
use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;

/// Writes values over time, or over another quantity, with a column for each line of a plot.
pub fn write<T: Display>(path: &Path, unit: &str, columns: &[(&str, Vec<(u64, T)>)]) -> Result<()> {
    let mut text = String::from(unit);
    for (name, _) in columns {
        text += &format!(",{name}");
    }
    let (_, first) = columns.first().context("a column")?;
    for (row, (at, _)) in first.iter().enumerate() {
        text += &format!("\n{at}");
        for (_, counts) in columns {
            text += &format!(",{}", counts[row].1);
        }
    }
    std::fs::write(path, text + "\n")?;
    Ok(())
}

type Line = (String, Vec<(f64, f64)>);

/// Reads the values back.
fn read(path: &Path) -> Result<Vec<Line>> {
    let text = std::fs::read_to_string(path)?;
    let mut rows = text.lines().map(|row| row.split(','));
    let names = rows.next().context("names")?.skip(1);
    let mut lines: Vec<Line> = names.map(|name| (name.to_owned(), Vec::new())).collect();
    for mut row in rows {
        let at = row.next().context("a time")?.parse()?;
        for ((_, points), count) in lines.iter_mut().zip(row) {
            points.push((at, count.parse()?));
        }
    }
    Ok(lines)
}

/// Draws `name`.svg from `name`.csv beside it; each axis is logarithmic or not.
pub fn plot(path: &Path, title: &str, axes: [&str; 2], logs: [bool; 2]) -> Result<()> {
    let mut lines = read(&path.with_extension("csv"))?;
    if logs[1] {
        // Zero is drawn below one.
        for point in lines.iter_mut().flat_map(|(_, points)| points) {
            point.1 = point.1.max(0.8);
        }
    }
    let path = &path.with_extension("svg");
    let all = || lines.iter().flat_map(|(_, points)| points.iter());
    let right = all().map(|p| p.0).fold(0.0, f64::max);
    let top = all().map(|p| p.1).fold(1.0, f64::max) * 1.3;
    let left = all().map(|p| p.0).fold(right, f64::min);
    let root = SVGBackend::new(path, (800, 360)).into_drawing_area();
    root.fill(&WHITE)?;
    let colours = [
        RGBColor(200, 50, 40),
        RGBColor(30, 100, 200),
        RGBColor(60, 150, 60),
        RGBColor(150, 90, 170),
    ];
    macro_rules! draw {
        ($across:expr, $range:expr) => {{
            let mut chart = ChartBuilder::on(&root)
                .caption(title, ("sans-serif", 18))
                .margin(12)
                .x_label_area_size(40)
                .y_label_area_size(60)
                .build_cartesian_2d($across, $range)?;
            chart
                .configure_mesh()
                .x_desc(axes[0])
                .y_desc(axes[1])
                .light_line_style(WHITE)
                .draw()?;
            for ((name, points), colour) in lines.iter().zip(colours) {
                chart
                    .draw_series(LineSeries::new(
                        points.iter().copied(),
                        colour.stroke_width(2),
                    ))?
                    .label(name)
                    .legend(move |(x, y)| {
                        PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
                    });
            }
            chart
                .configure_series_labels()
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK)
                .draw()?;
        }};
    }
    match logs {
        [false, false] => draw!(left..right, 0.0..top),
        [false, true] => draw!(left..right, (0.8..top).log_scale()),
        [true, false] => draw!((left..right).log_scale(), 0.0..top),
        [true, true] => draw!((left..right).log_scale(), (0.8..top).log_scale()),
    }
    root.present()?;
    Ok(())
}
