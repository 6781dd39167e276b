# frozen_string_literal: true

require 'spec_helper'

# What it declares is in the spec of the class that contains it.
describe 'common::again::install' do
  SYSTEMS.slice('debian-12').each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts.merge('again' => FACT) }

      it { is_expected.to compile.and_raise_error(%r{is private: include common::again}) }

      context 'when the class contains it' do
        let(:pre_condition) { 'include common::again' }

        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_file('/usr/local/bin/again').that_comes_before('Exec[again]') }
        it { is_expected.to contain_file('/etc/again.toml').that_comes_before('Exec[again]') }
        it { is_expected.to contain_file('/etc/again.toml').with_mode('0644').with_show_diff(true) }
      end

      context 'with a command' do
        let(:pre_condition) { "class { 'common::again': command => ['/opt/run', '--password', 'hunter2'] }" }

        it { is_expected.to contain_file('/etc/again.toml').with_mode('0644').with_show_diff(false) }
      end

      context 'with a command that is Sensitive' do
        let(:pre_condition) { "class { 'common::again': command => Sensitive(['/opt/run', '--password', 'hunter2']) }" }

        it { is_expected.to compile.with_all_deps }

        it 'is for its owner alone, and in no report' do
          file = catalogue.resource('file', '/etc/again.toml')
          expect(file[:mode]).to eq('0600')
          expect(file[:show_diff]).to be(false)
          expect(file.sensitive_parameters + [file[:content].class.name]).to include(:content).or include(%r{Sensitive})
          content = file[:content]
          expect(content.respond_to?(:unwrap) ? content.unwrap : content).to include('hunter2')
        end
      end
    end
  end
end
