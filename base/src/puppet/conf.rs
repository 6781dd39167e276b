//! Reader of puppet.conf, limited to what is needed: sections, settings, `$name` in values.

use std::collections::BTreeMap;

use super::options::Application;

/// Settings by section, as Puppet's own parser (settings/config_file.rb) reads them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conf {
    settings: BTreeMap<(String, String), String>,
    unreadable: bool,
}

impl Conf {
    /// Parses a file's text; skips lines that it does not understand.
    pub fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let mut section = "main".to_owned();
        let mut settings = BTreeMap::new();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                section = name.trim().to_owned();
            } else if let Some((name, value)) = line.split_once('=') {
                settings.insert((section.clone(), name.trim().to_owned()), plain(value));
            }
        }
        Conf {
            settings,
            unreadable: false,
        }
    }

    /// Settings of a file that exists but cannot be read: none is known.
    pub fn unreadable() -> Self {
        Conf {
            unreadable: true,
            ..Conf::default()
        }
    }

    /// Setting of an application: its own section takes precedence over `main`. The section of
    /// `apply` is `[user]` (lib/puppet/application/apply.rb, `run_mode :user`).
    pub fn value(&self, application: Application, name: &str) -> Option<&str> {
        self.value_in(&[application.section(), "main"], name)
    }

    /// Setting in the first of these sections that has it.
    pub fn value_in(&self, sections: &[&str], name: &str) -> Option<&str> {
        sections.iter().find_map(|section| {
            self.settings
                .get(&((*section).to_owned(), name.to_owned()))
                .map(String::as_str)
        })
    }

    /// Setting of an application that is true or false.
    pub fn flag(&self, application: Application, name: &str) -> Option<bool> {
        match self.value(application, name) {
            Some("true") => Some(true),
            Some("false") => Some(false),
            _ => None,
        }
    }

    /// Whether the file is known not to set this setting for the agent.
    pub fn is_without(&self, name: &str) -> bool {
        !self.unreadable && self.value(Application::Agent, name).is_none()
    }
}

/// Value without the `{owner = …}` that may follow it.
fn plain(value: &str) -> String {
    let value = value.trim();
    match value.split_once('{') {
        // `${name}` is part of the value.
        Some((before, _)) if !before.ends_with('$') && value.ends_with('}') => {
            before.trim_end().to_owned()
        }
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_agents_section_goes_before_main() {
        let conf = Conf::parse(
            b"vardir = /a\n[main]\n# splay = false\nsplay = true\nlogdir=/l { owner = root }\n[agent]\n splay=false\nrundir = ${vardir}/run\n",
        );
        let value = |name| conf.value(Application::Agent, name);
        assert_eq!(conf.flag(Application::Agent, "splay"), Some(false));
        assert_eq!(value("vardir"), Some("/a"));
        assert_eq!(value("logdir"), Some("/l"));
        assert_eq!(value("rundir"), Some("${vardir}/run"));
        assert!(conf.is_without("daemonize"));
        assert!(!Conf::unreadable().is_without("daemonize"));
    }

    #[test]
    fn each_application_reads_its_own_section_before_main() {
        use Application::{Agent, Apply};
        for (text, agent, apply) in [
            ("[main]\nnoop = true\n", true, true),
            ("[agent]\nnoop = true\n", true, false),
            ("[user]\nnoop = true\n", false, true),
            ("[main]\nnoop = true\n[user]\nnoop = false\n", true, false),
            ("", false, false),
        ] {
            let conf = Conf::parse(text.as_bytes());
            assert_eq!(
                [Agent, Apply].map(|one| conf.flag(one, "noop") == Some(true)),
                [agent, apply],
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn total(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Conf::parse(&text).flag(Application::Agent, "splay");
        }
    }
}
