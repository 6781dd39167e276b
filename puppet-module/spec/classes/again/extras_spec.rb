# frozen_string_literal: true

require 'spec_helper'

# What it declares is in the spec of the class that contains it.
describe 'common::again::extras' do
  SYSTEMS.slice('debian-12').each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts.merge('again' => FACT) }

      it { is_expected.to compile.and_raise_error(%r{is private: include common::again}) }

      context 'when the class contains it, with a package' do
        let(:pre_condition) { "class { 'common::again': manage_binary => 'package' }" }

        it { is_expected.to compile.with_all_deps }

        it 'goes before the boot unit of the package, which has no settings' do
          is_expected.to contain_file('/etc/systemd/system/again-resume.service').with_content(%r{^ExecStart=/usr/bin/again resume$})
        end
      end
    end
  end
end
