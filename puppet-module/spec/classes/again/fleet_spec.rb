# frozen_string_literal: true

require 'spec_helper'

describe 'common::again::fleet' do
  let(:node) { 'lb1.example.com' }
  let(:ssl) { %w[cert key ca crl].to_h { |name| [name, "/ssl/#{name}.pem"] } }
  let(:fleet_fact) { { 'again' => FACT, 'again_fleet' => { 'certname' => 'lb1.example.com', 'paths' => ssl } } }
  let(:least) { { endpoints: ['etcd1.example.com'], accept: ['web*.example.com'] } }
  let(:params) { least }
  let(:written) { catalogue.resource('File', '/etc/again-fleet.toml')[:content].lines.drop(1).join }

  # The text of a unit.
  def unit(name)
    catalogue.resource('File', "/etc/systemd/system/#{name}")[:content]
  end

  SYSTEMS.slice('debian-12', 'debian-13', 'rocky-9').each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts.merge(fleet_fact) }

      it { is_expected.to compile.with_all_deps }
      it { is_expected.to contain_class('common::again') }

      it 'starts the sockets before the service, and the service with the helper in place' do
        %w[again-fleet.socket again-fleet-executor.socket].each do |socket|
          is_expected.to contain_service(socket).with(ensure: 'running', enable: true).that_comes_before('Service[again-fleet.service]')
          is_expected.to contain_service(socket).that_requires(["File[/etc/systemd/system/#{socket}]", 'User[again-fleet]', 'File[/usr/local/bin/again-fleet]'])
        end
        is_expected.to contain_service('again-fleet.service').with(ensure: 'running', enable: true).that_requires('Class[common::again::install]')
        is_expected.not_to contain_service('again-fleet-executor.service')
      end

      it 'tells the fleet of the node' do
        basics = { 'fqdn' => 'lb1.example.com', 'hostname' => 'lb1' }
        is_expected.to contain_again_inventory('this node').with(facts: basics, program: '/usr/local/bin/again-fleet', config: nil)
                                                           .that_requires('Service[again-fleet.service]')
      end

      it 'restarts the service for its settings, and root\'s side for nothing' do
        is_expected.to contain_service('again-fleet.service')
          .that_subscribes_to(%w[File[/etc/again-fleet.toml] File[/usr/local/bin/again-fleet] File[/etc/systemd/system/again-fleet.service]])
      end

      it 'installs the program, its manual pages and completions from the files of the module' do
        is_expected.to contain_file('/usr/local/bin/again-fleet').with(
          ensure: 'file', mode: '0755', owner: 'root', source: "puppet:///modules/#{MODULE_NAME}/x86_64/again-fleet", backup: false,
        )
        {
          'bash-completion/completions/again-fleet'    => 'again-fleet.bash',
          'zsh/site-functions/_again-fleet'            => '_again-fleet',
          'fish/vendor_completions.d/again-fleet.fish' => 'again-fleet.fish',
        }.each do |path, name|
          is_expected.to contain_file("/usr/local/share/#{path}")
            .with(mode: '0644', source: "puppet:///modules/#{MODULE_NAME}/completions/#{name}").that_requires('Exec[again-fleet-directories]')
        end
        { 'again-fleet.8' => 'man8', 'again-fleet-json.5' => 'man5', 'again-fleet.toml.5' => 'man5' }.each do |page, section|
          is_expected.to contain_file("/usr/local/share/man/#{section}/#{page}")
            .with(mode: '0644', source: "puppet:///modules/#{MODULE_NAME}/man/#{page}").that_requires('Exec[again-fleet-directories]')
        end
      end

      it 'hands over the certificate, and watches it' do
        %w[cert key ca crl].each do |name|
          expect(unit('again-fleet.service')).to include("\nLoadCredential=#{name}:/ssl/#{name}.pem\nEnvironment=AGAIN_FLEET_#{name.upcase}=%d/#{name}\n")
          expect(unit('again-fleet-certificate.path')).to include("\nPathChanged=/ssl/#{name}.pem\n")
        end
        is_expected.to contain_service('again-fleet-certificate.path').with_ensure('running')
      end

      it 'has what is held judged anew once the helper is enabled again' do
        expect(unit('again-fleet-enabled.path')).to include("\nPathChanged=/var/lib/again/disabled\n")
        is_expected.to contain_service('again-fleet-enabled.path').with(ensure: 'running', enable: true)
      end

      it 'calls the programs of rules, as root and outside of any sandbox' do
        is_expected.to contain_service('again-fleet-calls.path').with(ensure: 'running', enable: true)
                                                                .that_requires('File[/etc/systemd/system/again-fleet-calls.service]')
        is_expected.not_to contain_service('again-fleet-calls.service')
        expect(unit('again-fleet-calls.path')).to include("\nDirectoryNotEmpty=/var/lib/again-fleet/calls\n")
        expect(unit('again-fleet-calls.service')).to include("\nExecStart=/usr/local/bin/again-fleet call\n", "\nUser=root\n")
        expect(unit('again-fleet-calls.service')).not_to match(%r{^(Protect|Private|System|Restrict|Type=oneshot)})
      end

      it 'removes rules that no manifest has, and has the service read those that changed' do
        is_expected.to contain_file('/etc/again-fleet.d')
          .with(ensure: 'directory', owner: 'root', mode: '0755', recurse: true, purge: true, force: true).that_notifies('Exec[again-fleet-rules]')
        is_expected.to contain_exec('again-fleet-rules').with(
          command: %w[/usr/bin/systemctl try-reload-or-restart again-fleet.service], refreshonly: true,
        ).that_requires('Service[again-fleet.service]')
        expect(written).not_to include('rules_dir')
      end

      it 'runs as a user of its own, who cannot log in, and whom root\'s socket is for' do
        is_expected.to contain_user('again-fleet').with(system: true, shell: '/usr/sbin/nologin', managehome: false, gid: 'again-fleet')
        expect(unit('again-fleet.service')).to match(%r{^User=again-fleet$})
        expect(unit('again-fleet-executor.socket')).to match(%r{^SocketGroup=again-fleet\nSocketMode=0660$})
        expect(unit('again-fleet.socket')).to match(%r{^SocketGroup=root\nSocketMode=0660$})
      end

      it 'bounds the memory of the service, and not that of runs' do
        expect(unit('again-fleet.service')).to match(%r{^MemoryMax=512M$})
        expect(unit('again-fleet-executor.service')).not_to include('MemoryMax')
      end

      it 'starts a run as cron does, without a sandbox' do
        pam = (os == 'rocky-9') ? 'crond' : 'cron'
        service = unit('again-fleet-executor.service').lines.reject { |line| line.start_with?('#') }.drop_while { |line| line != "[Service]\n" }.drop(1)
        expect(service.join).to eq("ExecStart=/usr/local/bin/again-fleet executor\nUser=root\nSupplementaryGroups=root\nPAMName=#{pam}\nWorkingDirectory=/root\nIgnoreSIGPIPE=no\n")
      end

      it 'writes what is set, and no defaults of the program' do
        expect(written).to eq(<<~TOML)
          backend = "etcd"
          endpoints = ["etcd1.example.com"]
          tls = true
          certname = "lb1.example.com"
          cert = "/ssl/cert.pem"
          key = "/ssl/key.pem"
          ca = "/ssl/ca.pem"
          crl = "/ssl/crl.pem"
          trust = "puppet"
          accept = ["web*.example.com"]
          operators = []
          facts = []
          helper = "/usr/local/bin/again"
        TOML
      end
    end
  end

  context 'with events' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:params) { least.merge(events: true) }

    it { is_expected.to compile.with_all_deps }

    it 'has a spool that the service may read' do
      is_expected.to contain_file('/var/spool/again-fleet').with(ensure: 'directory', owner: 'root', group: 'again-fleet', mode: '2750')
                                                           .that_requires('Group[again-fleet]')
      expect(unit('again-fleet.service')).not_to include('ReadWritePaths')
    end

    it 'watches all of a run' do
      is_expected.to contain_again_events('this node').with(spool: '/var/spool/again-fleet', helper: '/usr/local/bin/again', types: nil, only: nil, values: nil)
    end

    context 'of some kinds' do
      let(:params) { least.merge(user: 'carrier', events: { types: ['Service'], titles: ['web*'], tags: ['shop'], only: 'failed', values: true }) }

      it { is_expected.to contain_again_events('this node').with(types: ['Service'], titles: ['web*'], tags: ['shop'], only: 'failed', values: true) }
      it { is_expected.to contain_file('/var/spool/again-fleet').with_group('carrier') }
    end
  end

  context 'without events' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }

    it { is_expected.not_to contain_again_events('this node') }
    it { is_expected.to contain_file('/var/spool/again-fleet').with(ensure: 'absent', force: true, backup: false) }

    it 'has a directory for requests, in which root writes and the service reads' do
      is_expected.to contain_file('/var/spool/again-fleet-requests').with(ensure: 'directory', owner: 'root', group: 'again-fleet', mode: '2750')
                                                                    .that_requires('Group[again-fleet]').that_comes_before('Service[again-fleet.service]')
    end

    it { expect(unit('again-fleet.socket')).to match(%r{^ListenDatagram=/run/again-fleet/events\nSocketUser=root\nSocketGroup=root\nSocketMode=0660$}) }
  end

  context 'with facts to publish' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact).merge('role' => 'haproxy', 'a.b' => 1, 'networking' => { 'ip' => '10.0.0.1' }, 'made' => { 'up' => true, 'list' => ['x'] }) }
    let(:params) { least.merge(published_facts: %w[os.name made.up made.list made.list.0 made a.b none no.such processors.count config.what!]) }
    let(:told) { catalogue.resource('Again_inventory', 'this node')[:facts] }

    it 'tells those that are one value' do
      expect(told).to include('role' => 'haproxy', 'ipaddress' => '10.0.0.1', 'os.name' => 'Debian', 'made.up' => true, 'made.list.0' => 'x', 'a.b' => 1)
      expect(told.keys).not_to include('made', 'made.list', 'none', 'no.such', 'config.what!')
    end
  end

  context 'with a role in the certificate' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:trusted_facts) { { 'pp_role' => 'frontend' } }

    it { expect(catalogue.resource('Again_inventory', 'this node')[:facts]).to include('role' => 'frontend') }
  end

  context 'with slots' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:slots) { { group: 'puppetserver', limit: 8 } }
    let(:params) { least.merge(slots: slots) }

    it { is_expected.to compile.with_all_deps }

    it 'has every run of the agent wait for one' do
      expect(written).to include("\nslots_group = \"puppetserver\"\nslots_limit = 8\n")
      expect(written).not_to match(%r{slots_(required|max_wait)})
      is_expected.to contain_again_prerun('a slot').with(ensure: 'present', program: '/usr/local/bin/again-fleet', config: nil, required: false)
                                                   .that_requires('Service[again-fleet.service]')
    end

    context 'of which no run starts without' do
      let(:params) { least.merge(slots: slots.merge(required: true, max_wait: '20', prerun: true)) }

      it { is_expected.to contain_again_prerun('a slot').with(ensure: 'present', required: true) }
      it { expect(written).to match(%r{^slots_max_wait = 20\n.*slots_required = true$}m) }
    end

    context 'but not before every run' do
      let(:params) { least.merge(slots: slots.merge(prerun: false)) }

      it { is_expected.to contain_again_prerun('a slot').with_ensure('absent') }
    end

    context 'on NATS' do
      let(:params) { least.merge(slots: slots, backend: 'nats') }

      it { is_expected.to compile.and_raise_error(%r{slots need etcd: on NATS a key that is renewed loses its place}) }
    end
  end

  context 'with a Sensitive run_cmd' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:params) { least.merge(run_cmd: sensitive('puppet apply password')) }

    it 'has it in settings that others cannot read, and in no report' do
      is_expected.to contain_file('/etc/again-fleet.toml').with(owner: 'root', group: 'again-fleet', mode: '0640')
      settings = catalogue.resource('File[/etc/again-fleet.toml]')
      expect(settings.sensitive_parameters).to eq([:content])
      expect(settings[:content]).to include('run_cmd = ["puppet", "apply", "password"]')
    end
  end

  context 'with everything set' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:params) do
      least.merge(
        backend: 'nats', tls: false, namespace: 'test', certname: 'lb', certificates: { key: '/own/key.pem', revocation: 'leaf' }, operators: ['pp_role=admin'],
        accept_for: { 'puppet.example.com' => ['web*.example.com'] }, run_cmd: 'puppet apply  /etc/site.pp', cwd: '/etc/puppet', published_facts: %w[role],
        ttl: '010', skew: '2m', spread: '100ms', hop_limit: 3, cap_share: 25, firing_group: 'puppet', user: 'carrier',
        pam_service: 'login', binary: '/opt/again-fleet'
      )
    end

    it { is_expected.to compile.with_all_deps }

    it { is_expected.to contain_again_inventory('this node').with(program: '/opt/again-fleet') }

    it 'lets the group leave requests, each of its members their own' do
      is_expected.to contain_file('/var/spool/again-fleet-requests').with(ensure: 'directory', owner: 'root', group: 'puppet', mode: '3775')
    end

    it 'writes all of it' do
      is_expected.to contain_file('/etc/again-fleet.toml').with_content(<<~TOML)
        # Written by Puppet (common::again::fleet): changes made here do not last.
        backend = "nats"
        endpoints = ["etcd1.example.com"]
        tls = false
        namespace = "test"
        certname = "lb"
        cert = "/ssl/cert.pem"
        key = "/own/key.pem"
        ca = "/ssl/ca.pem"
        crl = "/ssl/crl.pem"
        revocation = "leaf"
        trust = "puppet"
        accept = ["web*.example.com"]
        operators = ["pp_role=admin"]
        run_cmd = ["puppet", "apply", "/etc/site.pp"]
        cwd = "/etc/puppet"
        facts = ["role"]
        ttl = 10
        skew = "2m"
        spread = "100ms"
        hop_limit = 3
        cap_share = 25
        helper = "/usr/local/bin/again"

        [accept_for]
        "puppet.example.com" = ["web*.example.com"]
      TOML
    end

    it 'has units that fit' do
      is_expected.to contain_file('/etc/systemd/system/again-fleet.service').with_content(%r{^ExecStart=/opt/again-fleet serve$})
      is_expected.to contain_file('/etc/systemd/system/again-fleet.service').with_content(%r{^User=carrier\nGroup=carrier$})
      is_expected.to contain_file('/etc/systemd/system/again-fleet-executor.service').with_content(%r{^PAMName=login$})
      is_expected.to contain_file('/etc/systemd/system/again-fleet.socket').with_content(%r{^SocketGroup=puppet$})
    end
  end

  context 'with trust in the backend' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:params) { least.merge(trust: 'backend') }

    it { is_expected.to compile.with_all_deps }
    it { is_expected.to contain_file('/etc/systemd/system/again-fleet.service').with_content(%r{^LoadCredential=key:/ssl/key\.pem$}) }
    it { expect(written).to include("cert = \"/ssl/cert.pem\"\n") }

    context 'without TLS, on another machine' do
      let(:params) { super().merge(tls: false, endpoints: ['localhost', '[::1]:1', '127.0.0.1', '127.1']) }

      it { is_expected.to compile.and_raise_error(%r{everybody who reaches 127\.1 run Puppet here}) }
    end
  end

  context 'without the revocation list' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:params) { least.merge(certificates: { revocation: 'off' }) }

    it { is_expected.to contain_file('/etc/systemd/system/again-fleet.service').without_content(%r{crl}) }
  end

  context 'on a node that no Puppet server has given certificates' do
    let(:facts) { SYSTEMS['debian-12'].merge('again' => FACT, 'again_fleet' => { 'paths' => ssl, 'missing' => %w[cert key crl] }) }

    it { is_expected.to compile.and_raise_error(%r{/ssl/cert\.pem is not there: .*'again-fleet ca' makes it, see "Without a Puppet server" in doc/fleet/quick-start\.md; or set}) }

    context 'that has others' do
      let(:params) { least.merge(certificates: { cert: '/own/cert.pem', key: '/own/key.pem', revocation: 'off' }) }

      it { is_expected.to compile.with_all_deps }
    end
  end

  context 'without certificates' do
    let(:facts) { SYSTEMS['debian-12'].merge('again' => FACT) }
    let(:params) { least.merge(trust: 'backend', tls: false, endpoints: ['localhost:2379']) }

    it { is_expected.to compile.with_all_deps }
    it { is_expected.not_to contain_service('again-fleet-certificate.path') }
    it { is_expected.to contain_file('/etc/systemd/system/again-fleet-certificate.path').with_ensure('absent') }
    it { is_expected.to contain_file('/etc/systemd/system/again-fleet.service').without_content(%r{Credential}) }
    it { expect(written).to include("certname = \"lb1.example.com\"\ntrust = \"backend\"\n") }
  end

  context 'with a helper from elsewhere' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:pre_condition) { "class { 'common::again': manage_binary => 'none' }" }

    it('takes its program from there too') { is_expected.not_to contain_file('/usr/local/bin/again-fleet') }

    context 'when absent' do
      let(:params) { { ensure: 'absent' } }

      it('leaves it there') { is_expected.not_to contain_file('/usr/local/bin/again-fleet') }
    end
  end

  context 'with a program from elsewhere' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:params) { least.merge(manage_binary: 'none', binary: '/usr/bin/again-fleet') }

    it { is_expected.to compile.with_all_deps }
    it { is_expected.not_to contain_file('/usr/bin/again-fleet') }
    it { is_expected.not_to contain_file('/usr/local/share/man/man8/again-fleet.8') }
    it { is_expected.not_to contain_file('/usr/local/share/zsh/site-functions/_again-fleet') }
  end

  context 'with a package' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:pre_condition) { "class { 'common::again': package_name => 'our-again', package_ensure => '0.1.0-1' }" }
    let(:params) { least.merge(manage_binary: 'package') }

    it { is_expected.to compile.with_all_deps }
    it { is_expected.to contain_package('our-again-fleet').with_ensure('0.1.0-1').that_notifies('Service[again-fleet.service]') }
    it { is_expected.to contain_service('again-fleet-executor.socket').that_requires('Package[our-again-fleet]') }
    it { is_expected.not_to contain_file('/usr/local/share/man/man8/again-fleet.8') }
    it { is_expected.not_to contain_file('/usr/local/share/zsh/site-functions/_again-fleet') }
    it { expect(unit('again-fleet.service')).to match(%r{^ExecStart=/usr/bin/again-fleet serve$}) }

    context 'when absent' do
      let(:pre_condition) { '' }
      let(:params) { { ensure: 'absent', manage_binary: 'package' } }

      it { is_expected.to compile.with_all_deps }
      it { is_expected.to contain_package('again-fleet').with_ensure('absent').that_requires('Service[again-fleet.service]') }
    end
  end

  context 'without the manual pages and completions of the helper' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:pre_condition) { "class { 'common::again': manage_docs => false }" }

    it { is_expected.not_to contain_file('/usr/local/share/man/man8/again-fleet.8') }
    it { is_expected.not_to contain_file('/usr/local/share/zsh/site-functions/_again-fleet') }
    it { is_expected.not_to contain_exec('again-fleet-directories') }
  end

  context 'with a program from the web' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:params) { least.merge(source: 'https://example.com/again-fleet', checksum: 'a' * 64) }

    it { is_expected.to contain_file('/usr/local/bin/again-fleet').with(source: 'https://example.com/again-fleet', checksum_value: 'a' * 64) }
  end

  context 'when absent' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:params) { { ensure: 'absent' } }

    it { is_expected.to contain_again_prerun('a slot').with_ensure('absent').that_comes_before('Service[again-fleet.service]') }

    it { is_expected.to compile.with_all_deps }
    it { is_expected.not_to contain_class('common::again') }

    it 'stops all of it first, and leaves nothing' do
      %w[service socket].product(%w[again-fleet again-fleet-executor]).each do |kind, name|
        is_expected.to contain_service("#{name}.#{kind}").with(ensure: 'stopped', enable: false)
          .that_comes_before("File[/etc/systemd/system/#{name}.#{kind}]")
        is_expected.to contain_file("/etc/systemd/system/#{name}.#{kind}").with_ensure('absent')
      end
      %w[path service].each do |kind|
        is_expected.to contain_service("again-fleet-calls.#{kind}").with(ensure: 'stopped', enable: false)
          .that_comes_before("File[/etc/systemd/system/again-fleet-calls.#{kind}]")
        is_expected.to contain_file("/etc/systemd/system/again-fleet-calls.#{kind}").with_ensure('absent')
      end
      %w[/etc/again-fleet.d /var/lib/again-fleet /var/spool/again-fleet /var/spool/again-fleet-requests].each do |directory|
        is_expected.to contain_file(directory).with(ensure: 'absent', force: true, backup: false).that_requires('Service[again-fleet.service]')
      end
      is_expected.to contain_file('/usr/local/bin/again-fleet').with_ensure('absent')
      is_expected.to contain_file('/usr/local/share/man/man8/again-fleet.8').with_ensure('absent')
      is_expected.to contain_file('/usr/local/share/man/man5/again-fleet-json.5').with_ensure('absent')
      is_expected.to contain_file('/usr/local/share/man/man5/again-fleet.toml.5').with_ensure('absent')
      is_expected.to contain_file('/usr/local/share/bash-completion/completions/again-fleet').with_ensure('absent')
      is_expected.to contain_user('again-fleet').with_ensure('absent').that_requires('Service[again-fleet.service]')
    end
  end

  {
    'without accept' => [{ endpoints: ['a'] }, %r{whose triggers this node takes: set common::again::fleet::accept, to \[\] for nobody's}i],
    'without endpoints' => [{ accept: [] }, %r{no server of etcd is known: set common::again::fleet::endpoints}i],
    'with a program from the web without its checksum' => [{ source: 'https://example.com/x', accept: [], endpoints: ['a'] }, %r{needs common::again::fleet::checksum}i],
    'with a string that a shell would have to read' => [{ run_cmd: 'puppet apply "a b"', accept: [], endpoints: ['a'] }, %r{run_cmd}],
  }.each do |what, (parameters, message)|
    context what do
      let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
      let(:params) { parameters }

      it { is_expected.to compile.and_raise_error(message) }
    end
  end

  context 'without the fact' do
    let(:facts) { SYSTEMS['debian-12'].merge('again' => FACT) }

    it { is_expected.to compile.and_raise_error(%r{does not tell Puppet's cert: set cert in common::again::fleet::certificates}) }
  end

  context 'with a path that a unit cannot name' do
    let(:facts) { SYSTEMS['debian-12'].merge(fleet_fact) }
    let(:params) { least.merge(certificates: { key: '/own/key.pem', ca: '/own/%n.pem' }) }

    it { is_expected.to compile.and_raise_error(%r{ca.*Pattern}) }
  end

  context 'with a path of Puppet that a unit cannot name' do
    let(:facts) { SYSTEMS['debian-12'].merge('again' => FACT, 'again_fleet' => { 'paths' => ssl.merge('ca' => '/my ssl/ca.pem') }) }

    it { is_expected.to compile.and_raise_error(%r{cannot name /my ssl/ca\.pem, which needs quotes: set ca in common::again::fleet::certificates}) }
  end

  context 'without systemd' do
    let(:facts) { SYSTEMS['alpine-3'].merge(fleet_fact).merge('again' => FACT.merge('systemd' => false)) }

    it { is_expected.to compile.and_raise_error(%r{has no systemd.*: set common::again::unsupported to 'ignore'}) }
  end

  {
    'without systemd' => SYSTEMS['alpine-3'].merge('again' => FACT.merge('systemd' => false)),
    'of an architecture without a program' => SYSTEMS['debian-12'].merge('again' => FACT, os: SYSTEMS['debian-12'][:os].merge('hardware' => 'armv7l')),
    'that runs FreeBSD' => OTHER_SYSTEMS['freebsd-13'],
  }.each do |what, system|
    context "on a node #{what}" do
      let(:facts) { system }

      it { is_expected.to compile.and_raise_error(%r{common::again(::fleet)?: .*unsupported to 'ignore'}) }

      %w[warn ignore].each do |unsupported|
        context "with unsupported => #{unsupported}" do
          let(:pre_condition) do
            <<~PUPPET
              class { 'common::again': unsupported => #{unsupported} }
              common::again::on { 'x': change => 'failed' }
              common::again::lock { 'y': candidates => ['lb1.example.com'] }
            PUPPET
          end

          it { is_expected.to compile.with_all_deps }

          it 'has nothing of the fleet' do
            expect(catalogue.resources.map(&:type) & %w[Service User Group Again_inventory Again_prerun]).to eq([])
            expect(catalogue.resources.map(&:ref).grep(%r{File.*fleet})).to eq([])
          end
        end
      end

      context 'when it removes' do
        let(:params) { { ensure: 'absent' } }

        it { is_expected.to compile.with_all_deps }
      end
    end
  end
end
