//! Applications of Puppet and the names of their options (lib/puppet/defaults.rb,
//! application/apply.rb, application/agent.rb; Puppet 7.23 and 8.10, OpenVox 9.0). A name that is
//! missing here, from a newer Puppet, counts as an option with a value if the next word could be
//! one.

/// Application of Puppet that runs a catalog.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Application {
    /// `puppet apply`.
    #[default]
    Apply,
    /// `puppet agent`.
    Agent,
}

impl Application {
    /// Run mode of Puppet, which names its section of puppet.conf and its pid file.
    pub const fn section(self) -> &'static str {
        match self {
            Application::Apply => "user",
            Application::Agent => "agent",
        }
    }
}

impl std::fmt::Display for Application {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Application::Apply => "puppet apply",
            Application::Agent => "puppet agent",
        })
    }
}

/// Names in one text, separated by white space.
#[derive(Debug, Clone, Copy)]
pub struct Names(&'static str);

impl Names {
    /// Iterator over the names.
    pub fn iter(self) -> impl Iterator<Item = &'static str> {
        self.0.split_ascii_whitespace()
    }

    /// Whether this is one of the names.
    pub fn contains(self, name: &str) -> bool {
        self.iter().any(|known| known == name)
    }
}

/// Settings that are true or false: `--name`, `--no-name`.
pub const FLAGS: Names = Names(
    "
    allow_duplicate_certs allow_pson_serialization always_retry_plugins autoflush daemonize default_schedules
    disable_i18n disable_per_environment_manifest document_all evaltrace exclude_unchanged_resources freeze_main
    genconfig genmanifest graph http_debug ignore_plugin_errors ignoremissingtypes ignoreschedules
    include_legacy_facts ldapssl ldaptls location_trusted manage_internal_file_permissions merge_dependency_warnings
    mkusers noop onetime pluginsync preprocess_deferred profile puppet_trace report
    report_configured_environmentpath report_include_system_store resubmit_facts rich_data settings_catalog
    show_diff skip_logging_catalog_request_destination splay static_catalogs storeconfigs strict_environment_mode
    strict_variables summarize tasks trace use_cached_catalog use_last_environment use_srv_records usecacheonfailure
    versioned_environment_dirs write_catalog_summary
",
);

/// Settings that take a value: `--name VALUE`, `--name=VALUE`.
pub const VALUED: Names = Names(
    "
    agent_catalog_run_lockfile agent_disabled_lockfile autosign basemodulepath binder_config bucketdir
    ca_fingerprint ca_name ca_port ca_refresh_interval ca_server ca_ttl cacert cacrl cadir cakey capub
    catalog_cache_terminus catalog_terminus cert_inventory certdir certificate_revocation certname ciphers classfile
    client_datadir clientbucketdir clientyamldir code codedir color confdir config config_file_name config_version
    configprint crl_refresh_interval csr_attributes csrdir data_binding_terminus default_file_terminus
    default_manifest deviceconfdir deviceconfig devicedir diff diff_args digest_algorithm disable_warnings
    dns_alt_names environment environment_data_provider environment_timeout environmentpath external_nodes
    fact_name_length_soft_limit fact_value_length_soft_limit factpath facts_terminus fileserverconfig filetimeout
    forge_authorization graphdir group hiera_config hostcert hostcert_renewal_interval hostcrl hostcsr hostprivkey
    hostpubkey http_connect_timeout http_extra_headers http_keepalive_timeout http_proxy_host http_proxy_password
    http_proxy_port http_proxy_user http_read_timeout http_user_agent key_type keylength lastrunfile lastrunreport
    ldapattrs ldapbase ldapclassattrs ldapparentattr ldappassword ldapport ldapserver ldapstackedattrs ldapstring
    ldapuser libdir localcacert localedest localesource log_level logdest logdir manifest masterport
    max_deprecations max_errors max_warnings maximum_uid maxwaitforcert maxwaitforlock module_groups
    module_repository module_working_dir modulepath name named_curve no_proxy node_cache_terminus node_name_fact
    node_name_value node_terminus number_of_facts_soft_limit passfile path payload_soft_limit pidfile plugindest
    pluginfactdest pluginfactsource pluginsignore pluginsource postrun_command preferred_serialization_format
    prerun_command preview_outputdir priority privatedir privatekeydir publicdir publickeydir puppetdlog report_port
    report_server reportdir reports reporturl requestdir resourcefile route_file rundir runinterval runtimeout
    serial server server_datadir server_list serverport signeddir skip_tags sourceaddress splaylimit srv_domain
    ssl_client_header ssl_client_verify_header ssl_lockfile ssl_trust_store ssldir statedir statefile statettl
    storeconfigs_backend strict supported_checksum_types syslogfacility tags top_level_facts_soft_limit
    transactionstorefile trusted_external_command trusted_oid_mapping_file user vardir vendormoduledir waitforcert
    waitforlock yamldir
",
);

/// Options of ruby itself whose value is the next word (ruby(1)).
pub const RUBYS_VALUED: Names =
    Names("-I -r -C -E -X --encoding --external-encoding --internal-encoding");

/// Form of an application option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// The option takes no value.
    Nothing,
    /// The option takes a value.
    Value,
    /// The option takes the next word as its value if that can be one.
    Perhaps,
}

/// Application options: `long/short`, followed by `=` if one takes a value or `?` if it may take
/// one.
const COMMON: Names =
    Names("version/V help/h debug/d test/t verbose/v detailed-exitcodes logdest/l=");
const APPLY: Names =
    Names("execute/e= catalog/c= loadclasses/L use-nodes write-catalog-summary parseonly");
const AGENT: Names =
    Names("fqdn/f= digest= sourceaddress= waitforcert/w= job-id= disable? enable fingerprint");

/// Application options that name the occasion of a run and not what is run: they differ each time.
/// `--job-id` is the orchestrator's number of the job, put into the request for the catalog and
/// into the report (lib/puppet/application/agent.rb).
pub const OCCASIONS: Names = Names("job-id");

/// Options of an application: long name, short letter, value.
pub fn of_application(
    application: Application,
) -> impl Iterator<Item = (&'static str, Option<u8>, Takes)> {
    let own = match application {
        Application::Apply => APPLY,
        Application::Agent => AGENT,
    };
    COMMON.iter().chain(own.iter()).map(|option| {
        let name = option.trim_end_matches(['=', '?']);
        let takes = match &option[name.len()..] {
            "=" => Takes::Value,
            "?" => Takes::Perhaps,
            _ => Takes::Nothing,
        };
        let (long, short) = name.split_once('/').unwrap_or((name, ""));
        (long, short.bytes().next(), takes)
    })
}
