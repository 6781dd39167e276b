# frozen_string_literal: true

require 'spec_helper'

describe 'common::again::delta' do
  let(:title) { 'cluster' }

  SYSTEMS.slice('debian-12').each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts.merge('again' => FACT) }

      context 'with defaults' do
        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_class('common::again') }

        it 'declares its Exec' do
          is_expected.to contain_exec('again-delta-cluster')
            .with_command(['/usr/local/bin/again', 'run', '--name=cluster', '--delta=0', '--resource=Common::Again::Delta[cluster]', *PATH_FLAGS])
            .with_refreshonly(true).with_logoutput(true).with_provider('posix').without_path
            .that_requires('Class[common::again::install]')
        end
      end

      { 120 => '120', '120' => '120', '007' => '007', '2m' => '2m', '1d' => '1d' }.each do |value, flag|
        context "with delta => #{value.inspect}" do
          let(:params) { { 'delta' => value } }

          it { is_expected.to contain_exec('again-delta-cluster').with_command(%w[/usr/local/bin/again run --name=cluster] + ["--delta=#{flag}", '--resource=Common::Again::Delta[cluster]', *PATH_FLAGS]) }
        end
      end

      context 'with start_timer_now' do
        let(:params) { { 'delta' => 5, 'start_timer_now' => true } }

        it 'passes it on' do
          is_expected.to contain_exec('again-delta-cluster')
            .with_command(['/usr/local/bin/again', 'run', '--name=cluster', '--delta=5', '--resource=Common::Again::Delta[cluster]', '--start-timer-now', *PATH_FLAGS])
        end
      end

      ['with spaces', '--help', "it's \"quoted\"; $(rm)", "\u00fcn\u00ef"].each do |name|
        context "with the title #{name.inspect}" do
          let(:title) { name }

          it { is_expected.to contain_exec("again-delta-#{name}").with_command(%w[/usr/local/bin/again run] + ["--name=#{name}", '--delta=0', "--resource=Common::Again::Delta[#{name}]", *PATH_FLAGS]) }
        end
      end

      context 'when notified itself, and its Exec, from a class with tags' do
        let(:pre_condition) do
          <<~PUPPET
            class profile::db {
              notify { 'a': notify => Common::Again::Delta['cluster'] }
              notify { 'b': notify => Exec['again-delta-cluster'] }
              common::again::delta { 'other': delta => 1 }
            }
            include profile::db
          PUPPET
        end

        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_exec('again-delta-cluster').that_subscribes_to(['Notify[a]', 'Notify[b]']) }
        it { expect(catalogue.resource('exec', 'again-delta-other').tags.to_a).to include('again', 'profile::db', 'other') }
      end

      context 'when Exec[again] waits for a resource that waits for the delta' do
        let(:pre_condition) { "notify { 'a': require => Common::Again::Delta['cluster'], notify => Exec['again'] }" }

        it { is_expected.to compile.with_all_deps }
      end

      ['again', 'again-on-failure', 'again-fleet', 'again-fleet-next', 'until peers joined', "two\nlines"].each do |name|
        context "with the title #{name.inspect}" do
          let(:title) { name }

          it { is_expected.to compile.and_raise_error(%r{common::again::delta: '#{name}' (names a timer of the module itself|cannot be)}) }
        end
      end

      context 'with the class absent' do
        let(:pre_condition) do
          "class { 'common::again': ensure => absent } notify { 'x': notify => [Exec['again'], Common::Again::Delta['cluster']] }"
        end

        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_exec('again-delta-cluster').with_command(['/bin/sh', '-c', 'echo "again: nothing to do: $0"', %r{\Aremoved}]) }
      end

      { 'delta' => [-1, '5 m', '1y', 1.5, true, ''], 'start_timer_now' => ['true', 1] }.each do |name, values|
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
