//! Paths of Puppet's certificates, for settings that do not set them.

use std::fs;
use std::path::{Path, PathBuf};

use again_base::puppet::conf::Conf;
use again_base::puppet::options::Application;
use again_base::sys::file::{LARGEST_SETTINGS, read_named};

use crate::wire::name::Node;

/// Configuration file and `ssldir` of each packaging of Puppet (`lib/puppet/defaults.rb`): the
/// all-in-one packages, Debian's, and older ones.
const LAYOUTS: [[&str; 2]; 3] = [
    [
        "etc/puppetlabs/puppet/puppet.conf",
        "etc/puppetlabs/puppet/ssl",
    ],
    ["etc/puppet/puppet.conf", "var/lib/puppet/ssl"],
    ["etc/puppet/puppet.conf", "etc/puppet/ssl"],
];

/// Paths and certname of Puppet's certificates on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificates {
    /// Directory of the certificates and keys (`ssldir`).
    pub directory: PathBuf,
    /// Certname of this node from puppet.conf, or else that of the only certificate in `ssldir`.
    pub certname: Option<Node>,
    /// Directory of the CA (`cadir`; by default a link from `ssldir`). It exists only on the CA's
    /// own machine.
    pub authority: PathBuf,
}

/// Reads puppet.conf and looks in the usual directories below `root`.
pub fn certificates(root: &Path) -> Certificates {
    let is_there = |[_, ssl]: &&[&str; 2]| root.join(ssl).is_dir();
    let [conf, ssl] = LAYOUTS.iter().find(is_there).unwrap_or(&LAYOUTS[1]);
    let conf = Conf::parse(&read_named(&root.join(conf), LARGEST_SETTINGS).unwrap_or_default());
    // A value that refers to other settings is not resolved here: the Puppet class writes the
    // resulting paths to the settings.
    let set = |sections: &[&str], name| {
        let set = conf.value_in(sections, name)?;
        (set.starts_with('/') && !set.contains('$')).then(|| PathBuf::from(set))
    };
    let directory = set(&["agent", "main"], "ssldir").unwrap_or_else(|| root.join(ssl));
    let authority = set(&["server", "master", "main"], "cadir");
    let certname = conf
        .value(Application::Agent, "certname")
        .and_then(|name| name.parse().ok());
    Certificates {
        certname: certname.or_else(|| only(&directory.join("certs"))),
        authority: authority.unwrap_or_else(|| directory.join("ca")),
        directory,
    }
}

/// Certname of the only certificate in a directory, apart from the CA's.
fn only(directory: &Path) -> Option<Node> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let mut names = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_suffix(".pem")?.to_owned()).filter(|name| name != "ca")
    });
    match (names.next(), names.next()) {
        (Some(name), None) => name.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, text).expect("written");
        }
        root
    }

    fn found(files: &[(&str, &str)]) -> (PathBuf, Option<String>) {
        let root = machine(files);
        let found = certificates(root.path());
        let below = found.directory.strip_prefix(root.path());
        let directory = below.map_or(found.directory.clone(), Path::to_owned);
        (
            directory,
            found.certname.map(|name| name.as_str().to_owned()),
        )
    }

    #[test]
    fn each_packaging_is_known() {
        for [conf, ssl] in LAYOUTS {
            let certificate = format!("{ssl}/certs/web1.test.pem");
            let files = [
                (certificate.as_str(), ""),
                (conf, "[agent]\ncertname = web2.test\n"),
            ];
            let [here, named] = [&files[..1], &files].map(found);
            assert_eq!(here, (ssl.into(), Some("web1.test".to_owned())));
            assert_eq!(named, (ssl.into(), Some("web2.test".to_owned())));
        }
        assert_eq!(found(&[]), ("var/lib/puppet/ssl".into(), None));
    }

    #[test]
    fn of_several_certificates_none_is_chosen() {
        let [ca, web1, web2] =
            ["ca", "web1", "web2"].map(|name| format!("var/lib/puppet/ssl/certs/{name}.pem"));
        let certname = |files: &[&String]| {
            found(
                &files
                    .iter()
                    .map(|path| (path.as_str(), ""))
                    .collect::<Vec<_>>(),
            )
            .1
        };
        assert_eq!(certname(&[&ca, &web1]).as_deref(), Some("web1"));
        assert_eq!(certname(&[&ca, &web1, &web2]), None);
        assert_eq!(certname(&[&ca]), None);
    }

    #[test]
    fn puppet_conf_names_another_directory() {
        let conf = |text| found(&[("etc/puppet/puppet.conf", text)]).0;
        assert_eq!(
            conf("[main]\nssldir = /srv/ssl\n"),
            PathBuf::from("/srv/ssl")
        );
        assert_eq!(
            conf("[main]\nssldir = $vardir/ssl\n"),
            PathBuf::from("var/lib/puppet/ssl")
        );
    }

    #[test]
    fn authority_is_where_puppet_conf_says_or_below_the_certificates() {
        let authority = |text: &str| {
            let root = machine(&[("etc/puppet/puppet.conf", text)]);
            let path = certificates(root.path()).authority;
            let below = path.strip_prefix(root.path());
            below.map_or(path.clone(), Path::to_owned)
        };
        for section in ["server", "master", "main"] {
            let text = format!("[{section}]\ncadir = /srv/ca\n");
            assert_eq!(authority(&text), PathBuf::from("/srv/ca"));
        }
        let usual = PathBuf::from("var/lib/puppet/ssl/ca");
        assert_eq!(authority("[agent]\ncadir = /srv/ca\n"), usual);
        assert_eq!(authority("[server]\ncadir = $vardir/ca\n"), usual);
        let ssldir = "[main]\nssldir = /srv/ssl\n";
        assert_eq!(authority(ssldir), PathBuf::from("/srv/ssl/ca"));
    }
}
