# frozen_string_literal: true

require 'spec_helper'

describe 'common::again' do
  SYSTEMS.slice('debian-12').each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts.merge('again' => FACT) }

      context 'with defaults' do
        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_class('common::again::install').that_comes_before('Class[common::again::extras]') }
        it { is_expected.to contain_class('common::again::requests') }
        it { is_expected.not_to contain_class('common::again::stop') }
        it { is_expected.not_to contain_package('again') }

        it 'installs the helper of the node\'s architecture' do
          is_expected.to contain_file('/usr/local/bin/again')
            .with_ensure('file').with_mode('0755').with_owner('root').with_group('root').with_backup(false)
            .with_source('puppet:///modules/common/x86_64/again')
        end

        it 'writes a configuration without a setting' do
          is_expected.to contain_file('/etc/again.toml').with_ensure('file').with_mode('0644')
            .with_content("# Written by Puppet (common::again): changes made here do not last.\n# binary: /usr/local/bin/again\n")
        end

        it 'declares the Exec' do
          is_expected.to contain_exec('again')
            .with_command(['/usr/local/bin/again', 'run', '--resource=Exec[again]', *PATH_FLAGS])
            .with_refreshonly(true).with_logoutput(true).with_provider('posix')
            .that_requires('Class[common::again::install]')
          is_expected.not_to contain_exec('again').that_requires('Class[common::again::extras]')
        end

        it 'is silent about what belongs to the site\'s Exec defaults' do
          is_expected.to contain_exec('again').without_path.without_user.without_environment.without_cwd.without_umask
        end

        it 'tags the Exec' do
          expect(catalogue.resource('exec', 'again').tags.to_a).to include('again', 'common::again')
        end

        it 'installs manual pages and completions' do
          {
            'man/man8/again.8'                         => 'man/again.8',
            'man/man5/again-json.5'                    => 'man/again-json.5',
            'man/man5/again.toml.5'                    => 'man/again.toml.5',
            'bash-completion/completions/again'        => 'completions/again.bash',
            'zsh/site-functions/_again'                => 'completions/_again',
            'fish/vendor_completions.d/again.fish'     => 'completions/again.fish',
          }.each do |path, source|
            is_expected.to contain_file("/usr/local/share/#{path}").with_ensure('file').with_mode('0644')
              .with_source("puppet:///modules/common/#{source}").that_requires('Exec[again-directories]')
          end
        end

        it 'manages no directory that others may manage' do
          is_expected.not_to contain_file('/usr/local/share/man/man8')
          is_expected.not_to contain_file('/etc/systemd/system/multi-user.target.wants')
        end

        it 'enables the boot unit' do
          is_expected.to contain_file('/etc/systemd/system/again-resume.service').with_ensure('file')
            .with_content(%r{^ExecStart=/usr/local/bin/again resume$}).with_content(%r{^KillMode=process$})
            .with_content(%r{^Wants=network-online.target$}).without_content(%r{^Wants=.*puppet})
          is_expected.to contain_file('/etc/systemd/system/multi-user.target.wants/again-resume.service')
            .with_ensure('link').with_target('/etc/systemd/system/again-resume.service')
        end

        it 'enables the unit that looks after dead waiters' do
          is_expected.to contain_file('/etc/systemd/system/again-pending.path')
            .with_content(%r{^PathExistsGlob=/var/lib/again/targets/\*/orders/\*$}).that_notifies('Exec[again-pending]')
          is_expected.to contain_file('/etc/systemd/system/again-pending.service')
            .with_content(%r{^ExecStopPost=.* /usr/local/bin/again resume --verbose$}).that_notifies('Exec[again-pending]')
          is_expected.to contain_file('/etc/systemd/system/multi-user.target.wants/again-pending.path')
            .with_ensure('link').with_target('/etc/systemd/system/again-pending.path')
          is_expected.to contain_exec('again-pending').with_refreshonly(true)
            .with_command(['/bin/sh', '-c', %r{systemctl daemon-reload && systemctl restart again-pending.path}])
        end
      end

      context 'with on_failure' do
        it { is_expected.not_to contain_again_on_failure('again-on-failure') }

        [[true, []], ['2m', ['--delta=2m']], [30, ['--delta=30']], [0, ['--delta=0']]].each do |value, delta|
          context value.inspect do
            let(:params) { { 'on_failure' => value, 'tags' => ['mine'] } }

            it 'declares a request that depends on nothing' do
              is_expected.to compile.with_all_deps
              is_expected.to contain_again_on_failure('again-on-failure').without_require
                .with_command(['/usr/local/bin/again', 'run', '--name=again-on-failure', '--resource=Class[Common::Again]', *delta, *PATH_FLAGS])
              expect(catalogue.resource('again_on_failure', 'again-on-failure').tags.to_a).to include('again', 'mine')
            end
          end
        end

        context 'and ensure absent' do
          let(:params) { { 'on_failure' => true, 'ensure' => 'absent' } }

          it { is_expected.to compile.with_all_deps }
          it { is_expected.not_to contain_again_on_failure('again-on-failure') }
        end

        context 'and a bad delta' do
          let(:params) { { 'on_failure' => 'soon' } }

          it { is_expected.to compile.and_raise_error(%r{on_failure}) }
        end
      end

      context 'without the fact' do
        let(:facts) { os_facts }

        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_exec('again').with_command(['/usr/local/bin/again', 'run', '--resource=Exec[again]']) }
        it { is_expected.not_to contain_file('/etc/systemd/system/again-resume.service') }
      end

      [nil, '', 'stringified', {}, { 'paths' => nil }, { 'paths' => 'x' }, { 'paths' => { 'pidfile' => 'relative' } },
       { 'paths' => { 'pidfile' => 7, 'lastrunfile' => '' } },].each do |value|
        context "with the fact #{value.inspect}" do
          let(:facts) { os_facts.merge('again' => value) }

          it { is_expected.to compile.with_all_deps }
          it { is_expected.to contain_exec('again').with_command(['/usr/local/bin/again', 'run', '--resource=Exec[again]']) }
        end
      end

      context 'without systemd' do
        let(:facts) { os_facts.merge('again' => FACT.merge('systemd' => false)) }

        it { is_expected.not_to contain_file('/etc/systemd/system/again-resume.service') }

        context 'but with manage_boot_unit' do
          let(:params) { { 'manage_boot_unit' => true } }

          it { is_expected.to contain_file('/etc/systemd/system/again-resume.service') }
        end
      end

      context 'when Puppet does not run as root' do
        let(:facts) { os_facts.merge('again' => FACT.merge('home' => '/home/u'), 'identity' => { 'privileged' => false }) }

        it { is_expected.to compile.with_all_deps }
        it { is_expected.not_to contain_file('/etc/systemd/system/again-resume.service') }
        it { is_expected.to contain_file('/home/u/.local/bin/again').with_ensure('file').with_mode('0755').without_owner.without_group }
        it { is_expected.to contain_file('/home/u/.config/again.toml').without_owner.without_group.with_content(%r{^# binary: /home/u/.local/bin/again$}) }
        it { is_expected.to contain_file('/home/u/.local/share/man/man8/again.8').without_owner.without_group }

        it 'makes the directories of the helper and its settings first' do
          is_expected.to contain_exec('again-home').with_command(['/bin/sh', '-c', 'umask 022; mkdir -p -- "$@"', 'sh', '/home/u/.local/bin', '/home/u/.config'])
            .that_comes_before(['File[/home/u/.local/bin/again]', 'File[/home/u/.config/again.toml]'])
        end

        it 'asks with its own settings' do
          is_expected.to contain_exec('again').with_command(['/home/u/.local/bin/again', 'run', '--config=/home/u/.config/again.toml', '--resource=Exec[again]', *PATH_FLAGS])
        end

        context 'and a site has owners of its own for files' do
          let(:pre_condition) { "File { owner => 'root', group => 'root' }" }

          it { is_expected.to contain_file('/home/u/.local/bin/again').without_owner.without_group }
        end

        context 'and the helper and its settings are the system\'s' do
          let(:facts) { os_facts.merge('again' => FACT, 'identity' => { 'privileged' => false }) }
          let(:params) { { 'manage_binary' => 'none', 'manage_config' => false } }

          it { is_expected.to compile.with_all_deps }
          it { is_expected.to contain_exec('again').with_command(['/usr/local/bin/again', 'run', '--resource=Exec[again]', *PATH_FLAGS]) }
        end

        context 'and takes it away' do
          let(:params) { { 'ensure' => 'absent' } }

          it { is_expected.to compile.with_all_deps }
          it { is_expected.to contain_file('/home/u/.local/state/again').with_ensure('absent').without_owner }
          it { is_expected.not_to contain_file('/var/lib/again') }
          it { is_expected.not_to contain_file('/etc/systemd/system/again-resume.service') }
        end

        [nil, '', '/home/a b', 7].each do |home|
          context "and its home is #{home.inspect}" do
            let(:facts) { super().merge('again' => FACT.merge('home' => home)) }

            it { is_expected.to compile.and_raise_error(%r{go: set common::again::binary, common::again::config_file}) }

            context 'but everything has a place' do
              let(:params) { { 'binary' => '/h/again', 'config_file' => '/h/again.toml' } }

              it { is_expected.to compile.with_all_deps }
              it { is_expected.not_to contain_exec('again-directories') }
            end
          end
        end
      end

      context 'with every setting' do
        let(:params) do
          {
            'jitter' => '08', 'max_jitter' => '5m', 'max_runs' => 6, 'max_runs_total' => 9, 'window' => 1800, 'on_cap' => 'wait',
            'wait_for_slot' => true, 'command' => ['/opt/bin/run "it"', 'a\\b', "\u00fc\t"], 'state_dir' => '/srv/again',
            'pending' => { 'stuck' => 'end', 'save_environment' => false, 'scope' => 'never', 'container' => 'stays', 'hold_before_shutdown' => '08' },
            'logs' => { 'log_dir' => '/srv/log', 'keep_logs' => 3, 'max_log_size' => '4M', 'max_logs_size' => 5_000_000 },
            'puppet_paths' => { 'agent_catalog_run_lockfile' => '/l1', 'agent_disabled_lockfile' => '/l2', 'lastrunfile' => '/l3', 'pidfile' => '/l4' },
          }
        end

        it { is_expected.to compile.with_all_deps }

        it 'writes them' do
          is_expected.to contain_file('/etc/again.toml').with_content(<<~TOML)
            # Written by Puppet (common::again): changes made here do not last.
            # binary: /usr/local/bin/again
            stuck = "end"
            save_environment = false
            scope = "never"
            container = "stays"
            hold_before_shutdown = 8
            jitter = 8
            max_jitter = "5m"
            window = 1800
            max_runs = 6
            max_runs_total = 9
            on_cap = "wait"
            slots = true
            command = ["/opt/bin/run \\"it\\"", "a\\\\b", "\u00fc\\t"]
            state_dir = "/srv/again"
            log_dir = "/srv/log"
            keep_logs = 3
            max_log_size = "4M"
            max_logs_size = 5000000
            agent_catalog_run_lockfile = "/l1"
            agent_disabled_lockfile = "/l2"
            lastrunfile = "/l3"
            pidfile = "/l4"
          TOML
        end

        it 'does not outvote a path that was set' do
          is_expected.to contain_exec('again').with_command(['/usr/local/bin/again', 'run', '--resource=Exec[again]'])
        end
      end

      context 'with other places' do
        let(:params) do
          { 'binary' => '/opt/again/bin/again', 'config_file' => '/opt/again/again.toml' }
        end

        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_file('/opt/again/bin/again') }
        it { is_expected.to contain_file('/opt/again/again.toml').with_content(%r{^# binary: /opt/again/bin/again$}) }

        it 'passes the configuration on' do
          is_expected.to contain_exec('again').with_command(['/opt/again/bin/again', 'run', '--config=/opt/again/again.toml', '--resource=Exec[again]', *PATH_FLAGS])
          is_expected.to contain_file('/etc/systemd/system/again-resume.service')
            .with_content(%r{^ExecStart=/opt/again/bin/again resume --config=/opt/again/again.toml$})
            .with_content(%r{^ConditionFileIsExecutable=/opt/again/bin/again$})
          is_expected.to contain_file('/etc/systemd/system/again-pending.service')
            .with_content(%r{^ExecStopPost=.* /opt/again/bin/again resume --verbose --config=/opt/again/again.toml$})
        end
      end

      context 'with a package' do
        let(:params) { { 'manage_binary' => 'package', 'package_name' => 'again-static', 'package_ensure' => '0.1.0-1' } }

        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_package('again-static').with_ensure('0.1.0-1') }
        it { is_expected.to contain_exec('again').with_command(['/usr/bin/again', 'run', '--resource=Exec[again]', *PATH_FLAGS]) }
        it { is_expected.not_to contain_file('/usr/bin/again') }
        it { is_expected.not_to contain_file('/usr/local/share/man/man8/again.8') }
      end

      context 'with a helper from elsewhere' do
        let(:params) { { 'manage_binary' => 'none', 'manage_config' => false } }

        it { is_expected.to compile.with_all_deps }
        it { is_expected.not_to contain_file('/usr/local/bin/again') }
        it { is_expected.not_to contain_file('/etc/again.toml') }
        it { is_expected.to contain_exec('again').with_command(['/usr/local/bin/again', 'run', '--resource=Exec[again]', *PATH_FLAGS]) }
      end

      context 'without manual pages, completions and boot unit' do
        let(:params) { { 'manage_docs' => false, 'manage_boot_unit' => false } }

        it { is_expected.to compile.with_all_deps }
        it { is_expected.not_to contain_exec('again-directories') }
        it { is_expected.to have_file_resource_count(2) }
      end

      context 'with tags' do
        let(:params) { { 'tags' => ['profile::db'] } }

        it { expect(catalogue.resource('exec', 'again').tags.to_a).to include('again', 'profile::db') }
      end

      # The usual layout: what comes after the profile that contains the class notifies the Exec.
      {
        'a contained class'    => "class a { contain common::again } class b { notify { 'x': notify => Exec['again'] } } include b contain a Class['a'] -> Class['b']",
        'require of the class' => "notify { 'x': require => Class['common::again'], notify => Exec['again'] } include common::again",
        'an arrow'             => "include common::again Class['common::again'] -> notify { 'x': notify => Exec['again'] }",
        'two profiles'         => "class a { include common::again notify { 'x': notify => Exec['again'] } } class b { contain common::again notify { 'y': notify => Exec['again'] } } include a include b",
        'the last stage'       => "stage { 'last': require => Stage['main'] } class { 'common::again': stage => 'last' } class b { notify { 'x': notify => Exec['again'] } } class { 'b': stage => 'last' } notify { 'y': notify => Exec['again'] }",
        'an early notifier'    => "stage { 'setup': before => Stage['main'] } class b { notify { 'x': notify => Exec['again'] } } class { 'b': stage => 'setup' } include common::again",
      }.each do |what, manifest|
        context "with #{what}" do
          let(:pre_condition) { manifest }

          it { is_expected.to compile.with_all_deps }
        end
      end

      context 'beside the same module under its other name' do
        other = (MODULE_NAME == 'common') ? 'again' : 'common::again' # both names
        let(:pre_condition) { "class #{other}::requests {} include #{other}::requests" }

        it { is_expected.to compile.and_raise_error(%r{common::again and #{other} are one module under two names, .*: use one name everywhere}) }
      end

      # As the README says.
      {
        'in an early stage'             => "stage { 'setup': before => Stage['main'] } class { 'common::again': stage => 'setup' } notify { 'x': notify => Exec['again'] }",
        'notified from a later stage'   => "stage { 'last': require => Stage['main'] } class b { notify { 'x': notify => Exec['again'] } } class { 'b': stage => 'last' } include common::again",
        'contained twice, in an order'  => "class a { contain common::again } class b { contain common::again } include a include b Class['a'] -> Class['b']",
        'with a delta in what is first' => "class a { contain common::again common::again::delta { 'd': } } class b { notify { 'x': notify => Exec['again-delta-d'] } } include a include b Class['a'] -> Class['b']",
      }.each do |what, manifest|
        context what do
          let(:pre_condition) { manifest }

          # The matcher for errors of the compilation sees no cycle.
          it { expect { is_expected.to compile }.to raise_error(RSpec::Expectations::ExpectationNotMetError, %r{dependency cycles found}) }
        end
      end

      context 'with ensure => absent' do
        let(:params) { { 'ensure' => 'absent' } }

        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_class('common::again::stop').that_comes_before('Class[common::again::install]') }
        it { is_expected.to contain_exec('again-stop').with_command(['/bin/sh', '-c', 'exec "$0" stop "$@"', '/usr/local/bin/again']) }
        it { is_expected.to contain_exec('again').with_command(['/bin/sh', '-c', 'echo "again: nothing to do: $0"', %r{\Aremoved}]).with_refreshonly(true) }
        it { is_expected.not_to contain_exec('again-directories') }

        %w[
          /usr/local/bin/again /etc/again.toml /usr/local/share/man/man8/again.8 /usr/local/share/man/man5/again-json.5
          /usr/local/share/man/man5/again.toml.5
          /usr/local/share/bash-completion/completions/again /usr/local/share/zsh/site-functions/_again
          /usr/local/share/fish/vendor_completions.d/again.fish /etc/systemd/system/again-resume.service
          /etc/systemd/system/multi-user.target.wants/again-resume.service /etc/systemd/system/again-pending.path
          /etc/systemd/system/again-pending.service /etc/systemd/system/multi-user.target.wants/again-pending.path
        ].each do |path|
          it { is_expected.to contain_file(path).with_ensure('absent') }
        end

        %w[/var/lib/again /var/log/again].each do |path|
          it { is_expected.to contain_file(path).with_ensure('absent').with_force(true).with_backup(false) }
        end

        context 'and directories of the site' do
          let(:params) { super().merge('state_dir' => '/srv', 'logs' => { 'log_dir' => '/data/again-logs' }) }

          it { is_expected.not_to contain_file('/srv') }
          it { is_expected.not_to contain_file('/var/lib/again') }
          it { is_expected.to contain_file('/data/again-logs').with_ensure('absent') }
        end

        context 'and a package' do
          let(:params) { super().merge('manage_binary' => 'package') }

          it { is_expected.to contain_package('again').with_ensure('absent') }
        end

        context 'and a helper from elsewhere' do
          let(:params) { super().merge('manage_binary' => 'none') }

          it { is_expected.not_to contain_file('/usr/local/bin/again') }
          it { is_expected.to contain_exec('again-stop') }
        end

        context 'and no architecture that the module knows' do
          let(:facts) { os_facts.merge('os' => os_facts[:os].merge('hardware' => 'riscv64')) }

          it { is_expected.to compile.with_all_deps }
        end
      end

      context 'on aarch64' do
        let(:facts) { os_facts.merge('os' => os_facts[:os].merge('hardware' => 'aarch64')) }

        it { is_expected.to contain_file('/usr/local/bin/again').with_source('puppet:///modules/common/aarch64/again') }
      end

      context 'on an architecture that the module has no helper for' do
        let(:facts) { os_facts.merge('os' => os_facts[:os].merge('hardware' => 'riscv64')) }

        it { is_expected.to compile.and_raise_error(%r{no helper for riscv64 among the module's files: build files/riscv64/again, or set common::again::source,}) }

        %w[warn ignore].each do |unsupported|
          context "with unsupported => #{unsupported}" do
            let(:params) { { 'unsupported' => unsupported } }
            let(:warnings) { [] }

            before { allow(Puppet::Util::Log).to receive(:create).and_wrap_original { |original, hash| (warnings << hash[:message] if hash[:level] == :warning) || original.call(hash) } }

            it 'installs nothing, asks for nothing and says so' do
              is_expected.to compile.with_all_deps
              expect(catalogue.resources.map(&:type)).not_to include('File', 'Package', 'Service')
              reason = "no helper for riscv64 among the module's files"
              is_expected.to contain_exec('again').with_command(['/bin/sh', '-c', 'echo "again: nothing to do: $0"', reason]).with_refreshonly(true)
              expect(warnings.grep(%r{#{reason}: nothing is done there}).size).to eq((unsupported == 'warn') ? 1 : 0)
            end
          end
        end

        context 'when it removes' do
          let(:params) { { 'ensure' => 'absent' } }

          it { is_expected.to contain_file('/usr/local/bin/again').with_ensure('absent') }
        end

        context 'but a source' do
          let(:params) { { 'source' => 'puppet:///modules/profile/again-riscv64' } }

          it { is_expected.to contain_file('/usr/local/bin/again').with_source('puppet:///modules/profile/again-riscv64') }
        end
      end

      context 'with a source on the web' do
        let(:params) { { 'source' => 'https://files.example.com/again', 'checksum' => '0' * 64 } }

        it { is_expected.to compile.with_all_deps }

        it 'wants what has this checksum, and nothing else' do
          is_expected.to contain_file('/usr/local/bin/again').with_source('https://files.example.com/again')
            .with_checksum('sha256').with_checksum_value('0' * 64).with_mode('0755').with_owner('root')
        end

        context 'without a checksum' do
          let(:params) { super().reject { |name| name == 'checksum' } }

          it { is_expected.to compile.and_raise_error(%r{a helper from the web needs common::again::checksum, its SHA-256}) }
        end

        context 'to be taken away' do
          let(:params) { super().merge('ensure' => 'absent') }

          it { is_expected.to compile.with_all_deps }
          it { is_expected.to contain_file('/usr/local/bin/again').with_ensure('absent').without_source }
        end
      end

      context 'with a checksum for a file of the module' do
        let(:params) { { 'checksum' => 'a' * 64 } }

        it { is_expected.to contain_file('/usr/local/bin/again').with_checksum_value('a' * 64).with_source('puppet:///modules/common/x86_64/again') }
      end

      context 'with unsupported => ignore' do
        let(:params) { { 'unsupported' => 'ignore' } }

        it('changes nothing on Linux') { is_expected.to contain_exec('again').with_command(['/usr/local/bin/again', 'run', '--resource=Exec[again]', *PATH_FLAGS]) }
      end

      {
        'binary'      => ['again', '/opt/with space/again', '/opt/a;b', "/opt/a\nb"],
        'config_file' => ['etc/again.toml', '/etc/%h'],
        'jitter'      => [-1, '1w', '2 m', '', '1.5', 1.5],
        'window'      => %W[60\n 99999999999],
        'max_runs'    => [-1, '10'],
        'wait_for_slot' => ['true', 8],
        'on_cap'      => ['never'],
        'pending'     => [{ 'scope' => true }, { 'jitter' => 1 }],
        'logs'        => [{ 'max_log_size' => '1T' }],
        'puppet_paths' => [{ 'pidfile' => 'relative' }],
        'command'     => [[], 'puppet agent -t', ['']],
        'state_dir'   => ['relative', "/a\tb"],
        'ensure'      => ['latest'],
        'unsupported' => [true, 'absent'],
        'source'      => ['again', 'ftp://x/y'],
        'checksum'    => ['md5', 'A' * 64],
        'tags'        => ['one', ['']],
      }.each do |name, values|
        values.each do |value|
          context "with #{name} => #{value.inspect}" do
            let(:params) { { name => value } }

            it { is_expected.to compile.and_raise_error(%r{parameter '#{name}'}) }
          end
        end
      end
    end
  end
end
