# frozen_string_literal: true

require 'spec_helper'

describe 'common::again::stop' do
  SYSTEMS.slice('debian-12').each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts.merge('again' => FACT) }

      it { is_expected.to compile.and_raise_error(%r{is private: include common::again}) }

      context 'when the class contains it' do
        let(:pre_condition) { "class { 'common::again': ensure => absent, config_file => '/opt/again.toml' }" }

        it { is_expected.to compile.with_all_deps }

        it 'stops what is on record, by the settings that are about to go' do
          is_expected.to contain_exec('again-stop')
            .with_command(['/bin/sh', '-c', 'exec "$0" stop "$@"', '/usr/local/bin/again', '--config=/opt/again.toml'])
            .that_comes_before(['File[/usr/local/bin/again]', 'File[/opt/again.toml]', 'File[/var/lib/again]'])
        end

        it 'then ends the waiters that are left' do
          is_expected.to contain_exec('again-stop-others').that_requires('Exec[again-stop]').that_comes_before('File[/usr/local/bin/again]')
        end
      end

      %w[package none].each do |from|
        context "when the helper is not the class's own (#{from})" do
          let(:pre_condition) { "class { 'common::again': ensure => absent, manage_binary => '#{from}' }" }

          it { is_expected.to contain_exec('again-stop') }
          it { is_expected.not_to contain_exec('again-stop-others') }
        end
      end
    end
  end
end
