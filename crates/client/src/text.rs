//! Tables and aligned blocks.

/// Space between two columns, as kubectl's tables have it.
const GAP: usize = 3;

/// A table that remembers its widths, so that rows printed later stand under the earlier ones.
pub(crate) struct Table {
    headers: Vec<&'static str>,
    widths: Vec<usize>,
}

impl Table {
    pub(crate) fn new(headers: Vec<&'static str>) -> Self {
        Self { widths: vec![0; headers.len()], headers }
    }

    /// Gives the columns of these names room for what may come later.
    pub(crate) fn with_room(mut self, room: &[(&str, usize)]) -> Self {
        for (header, width) in self.headers.iter().zip(&mut self.widths) {
            let wanted = room.iter().find(|(name, _)| name == header);
            *width = wanted.map_or(*width, |(_, room)| *room);
        }
        self
    }

    /// The column names and all rows.
    pub(crate) fn render(&mut self, rows: &[Vec<String>], with_headers: bool) -> String {
        let headers: Vec<String> = self.headers.iter().map(|header| (*header).to_owned()).collect();
        if with_headers {
            self.widen(&headers);
        }
        rows.iter().for_each(|row| self.widen(row));
        let mut out = String::new();
        if with_headers {
            self.line(&headers, &mut out);
        }
        rows.iter().for_each(|row| self.line(row, &mut out));
        out
    }

    /// One more row.
    pub(crate) fn row(&mut self, row: &[String]) -> String {
        self.widen(row);
        let mut out = String::new();
        self.line(row, &mut out);
        out
    }

    fn widen(&mut self, row: &[String]) {
        for (width, cell) in self.widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }

    fn line(&self, row: &[String], out: &mut String) {
        let begun = out.len();
        for (at, (cell, width)) in row.iter().zip(&self.widths).enumerate() {
            out.push_str(cell);
            if at + 1 < row.len() {
                pad(out, width + GAP - cell.chars().count().min(width + GAP));
            }
        }
        // Cells at the end may be empty.
        let end = begun + out.get(begun..).unwrap_or_default().trim_end_matches(' ').len();
        out.truncate(end);
        out.push('\n');
    }
}

/// A text of names and values. Values of lines that follow one another stand in one column, whatever the indentation;
/// a line without value begins anew. That is how kubectl's `describe` looks.
#[derive(Default)]
pub(crate) struct Block {
    out: String,
    run: Vec<(String, String)>,
}

impl Block {
    /// `name:  value`.
    pub(crate) fn value(&mut self, indent: usize, name: &str, value: impl AsRef<str>) {
        self.run.push((format!("{:indent$}{name}:", ""), value.as_ref().to_owned()));
    }

    /// Another value below the last one, in its column.
    pub(crate) fn more(&mut self, value: impl AsRef<str>) {
        self.run.push((String::new(), value.as_ref().to_owned()));
    }

    /// Values one below the other, the first beside the name; `<none>` if there are none.
    pub(crate) fn values(&mut self, indent: usize, name: &str, values: impl IntoIterator<Item = String>) {
        let mut values = values.into_iter();
        self.value(indent, name, values.next().as_deref().unwrap_or("<none>"));
        values.for_each(|value| self.more(value));
    }

    /// A line as it is.
    pub(crate) fn line(&mut self, indent: usize, text: impl AsRef<str>) {
        self.end_run();
        pad(&mut self.out, indent);
        self.out.push_str(text.as_ref());
        self.out.push('\n');
    }

    /// A table, indented by two, with dashes below the names if `underlined`.
    pub(crate) fn table(&mut self, headers: Vec<&'static str>, rows: &[Vec<String>], underlined: bool) {
        self.end_run();
        let dashes: Vec<String> = headers.iter().map(|header| "-".repeat(header.len())).collect();
        let mut table = Table::new(headers);
        let lines = if underlined {
            let mut all = vec![dashes];
            all.extend_from_slice(rows);
            table.render(&all, true)
        } else {
            table.render(rows, true)
        };
        for line in lines.lines() {
            self.line(2, line);
        }
    }

    pub(crate) fn finish(mut self) -> String {
        self.end_run();
        self.out
    }

    fn end_run(&mut self) {
        let width = self.run.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) + 2;
        for (name, value) in std::mem::take(&mut self.run) {
            // A value of several lines keeps its column.
            let mut lines = value.split('\n');
            let first = lines.next().unwrap_or_default();
            let mut line = format!("{name:width$}{first}");
            for next in lines {
                line.push_str(&format!("\n{:width$}{next}", ""));
            }
            for line in line.split('\n') {
                self.out.push_str(line.trim_end_matches(' '));
                self.out.push('\n');
            }
        }
    }
}

fn pad(out: &mut String, count: usize) {
    out.extend(std::iter::repeat_n(' ', count));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn tables_keep_their_widths() {
        let mut table = Table::new(vec!["NAME", "READY", "AGE"]);
        let text = table.render(&[row(&["web-é", "1/1", "5m"]), row(&["db", "", ""])], true);
        assert_eq!(text, "NAME    READY   AGE\nweb-é   1/1     5m\ndb\n");
        assert_eq!(table.row(&row(&["x", "0/1", "1s"])), "x       0/1     1s\n");
        assert_eq!(table.row(&row(&["longer-name", "0/1", "1s"])), "longer-name   0/1     1s\n");
        assert_eq!(table.row(&row(&["x", "0/1", "1s"])), "x             0/1     1s\n");
        let mut bare = Table::new(vec!["NAME", "READY"]);
        assert_eq!(bare.render(&[row(&["a", "b"])], false), "a   b\n");
    }

    #[test]
    fn blocks_align_what_follows_one_another() {
        let mut block = Block::default();
        block.value(0, "Name", "web");
        block.values(0, "Labels", ["a=b".to_owned(), "c=d".to_owned()]);
        block.values(0, "Node-Selectors", []);
        block.line(0, "Containers:");
        block.value(4, "State", "Running");
        block.value(6, "Started", "now\nand then");
        assert_eq!(
            block.finish(),
            "Name:            web\nLabels:          a=b\n                 c=d\nNode-Selectors:  <none>\nContainers:\n    State:      Running\n      Started:  now\n                and then\n"
        );
    }
}
