# frozen_string_literal: true

require 'spec_helper'

# What everything together comes to on each system; the other specs go into detail on one of them.
describe 'common::again' do
  let(:pre_condition) do
    <<~PUPPET
      notify { 'joined': notify => [Exec['again'], Common::Again::Delta['d'], Exec['again-delta-d']] }
      common::again::delta { 'd': delta => 120 }
      common::again::until { 'u': check => ['/usr/bin/test', '-f', '/x'] }
    PUPPET
  end

  it 'has facts of every system in metadata.json' do
    supported = JSON.parse(File.read("#{ROOT}/metadata.json"))['operatingsystem_support'].flat_map do |system|
      (system['operatingsystemrelease'] || [nil]).map { |release| [system['operatingsystem'], release] }
    end
    known = SYSTEMS.values.map { |facts| [facts[:os]['name'], (facts[:os]['name'] == 'Archlinux') ? nil : facts[:os]['release']['major']] }
    expect(known).to match_array(supported)
  end

  Dir["#{ROOT}/spec/facts/*"].each do |path|
    it "knows whether #{File.basename(path)} was measured" do
      expect(JSON.parse(File.read(path))['facts_are']).to match(%r{\A(measured|composed): })
    end
  end

  # Under both names of the module.
  %w[again.pp init.pp again/fleet.pp fleet.pp].map { |name| "#{ROOT}/manifests/#{name}" }.select { |path| File.exist?(path) }.each do |path|
    it "has 28 parameters at most in #{File.basename(path)}" do
      parameters = File.read(path)[%r{^class \S+ \(\n(.*?)^\) \{$}m, 1].scan(%r{\$\w+(?= = |,$)})
      expect(parameters.size).to be_between(10, 28)
    end
  end

  SYSTEMS.each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts.merge('again' => FACT.merge('systemd' => os != 'alpine-3')) }

      it { is_expected.to compile.with_all_deps }

      it 'installs and asks' do
        is_expected.to contain_file('/usr/local/bin/again').with_source("puppet:///modules/#{MODULE_NAME}/x86_64/again")
        is_expected.to contain_exec('again').with_provider('posix').with_command(['/usr/local/bin/again', 'run', '--resource=Exec[again]', *PATH_FLAGS])
        is_expected.to contain_exec('again-delta-d')
        is_expected.to contain_exec('again-until-u').with_refreshonly(false)
      end

      it 'has the boot unit where systemd is' do
        unit = contain_file('/etc/systemd/system/again-resume.service')
        (os == 'alpine-3') ? is_expected.not_to(unit) : is_expected.to(unit)
      end

      context 'when it is in a fleet' do
        let(:facts) { super().merge('again_fleet' => { 'certname' => 'x', 'paths' => %w[cert key ca crl].to_h { |name| [name, "/ssl/#{name}.pem"] } }) }
        let(:pre_condition) { "#{super()} class { 'common::again::fleet': endpoints => ['etcd1.example.com'], accept => [] }" }

        if os == 'alpine-3'
          it { is_expected.to compile.and_raise_error(%r{has no systemd}) }
        else
          it { is_expected.to compile.with_all_deps }

          it 'starts a run as the cron of the system does' do
            pam = (os_facts[:os]['family'] == 'Debian') ? 'cron' : 'crond'
            is_expected.to contain_file('/etc/systemd/system/again-fleet-executor.service').with_content(%r{^PAMName=#{pam}$})
          end
        end
      end

      context 'with a package' do
        let(:params) { { 'manage_binary' => 'package' } }

        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_package('again') }
      end
    end
  end

  OTHER_SYSTEMS.each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts }

      it { is_expected.to compile.and_raise_error(%r{Linux only, and this node runs #{os_facts[:kernel]}: set common::again::unsupported to 'ignore'}) }

      [{}, { 'ensure' => 'absent', 'manage_binary' => 'package', 'on_failure' => true }].each do |more|
        context "with unsupported => ignore and #{more}" do
          let(:params) { { 'unsupported' => 'ignore' }.merge(more) }

          # With all of what the types and the providers of such a node have to say of the Execs.
          it { is_expected.to compile.with_all_deps }

          it 'manages nothing' do
            managed = catalogue.resources.map(&:type) - %w[Stage Class Exec Common::Again::Delta Common::Again::Until Again::Delta Again::Until]
            expect(managed).to eq(['Notify'])
          end

          it 'asks for nothing, only if notified, by the provider of the system' do
            windows = os.start_with?('windows')
            reason = "Linux only, and this node runs #{os_facts[:kernel]}"
            command = windows ? "cmd.exe /c echo again: nothing to do: #{reason}" : ['/bin/sh', '-c', 'echo "again: nothing to do: $0"', reason]
            %w[again again-delta-d again-until-u].each do |exec|
              is_expected.to contain_exec(exec).with_command(command).with_refreshonly(true).with_provider(windows ? 'windows' : 'posix')
                .without_unless.without_require
            end
          end

          it 'finds the command where it is' do
            is_expected.to contain_exec('again').with_path(['C:\\Windows\\System32', 'C:\\Windows\\system32']) if os.start_with?('windows')
          end
        end
      end
    end
  end
end
