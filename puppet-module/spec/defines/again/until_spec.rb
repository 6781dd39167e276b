# frozen_string_literal: true

require 'spec_helper'

describe 'common::again::until' do
  let(:title) { 'peers joined' }
  let(:guard) { ['/bin/sh', '-c', 'timeout -k 5 "$0" "$@" || exit 1'] }

  SYSTEMS.slice('debian-12').each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts.merge('again' => FACT) }
      let(:params) { { 'check' => ['/usr/bin/test', '-f', '/x'] } }

      it { is_expected.to compile.with_all_deps }
      it { is_expected.to contain_class('common::again') }

      it 'declares its Exec' do
        is_expected.to contain_exec('again-until-peers joined')
          .with_command(['/usr/local/bin/again', 'run', '--name=until peers joined', '--delta=30', '--resource=Common::Again::Until[peers joined]', *PATH_FLAGS])
          .with_unless([[*guard, '60', '/usr/bin/test', '-f', '/x']])
          .with_logoutput(true).with_timeout(120).with_refreshonly(false)
          .that_requires('Class[common::again::install]')
      end

      context 'with a string, and everything else' do
        let(:params) { { 'check' => 'a | b', 'delta' => '2m', 'timeout' => 5, 'max_runs' => 40, 'on_cap' => 'wait' } }

        it 'gives it to a shell' do
          is_expected.to contain_exec('again-until-peers joined')
            .with_command(['/usr/local/bin/again', 'run', '--name=until peers joined', '--delta=2m', '--resource=Common::Again::Until[peers joined]', '--max-runs=40', '--on-cap=wait', *PATH_FLAGS])
            .with_unless([[*guard, '5', '/bin/sh', '-c', 'a | b']]).with_timeout(65)
        end
      end

      context 'with a Sensitive check' do
        let(:params) { { 'check' => sensitive(['/bin/ask', 'password']) } }

        it { is_expected.to contain_exec('again-until-peers joined').with_unless(sensitive([[*guard, '60', '/bin/ask', 'password']])) }
      end

      ['again', 'again-on-failure', 'until peers joined', "two\nlines"].each do |name|
        context "with the title #{name.inspect}" do
          let(:title) { name }

          it { is_expected.to compile.and_raise_error(%r{common::again::until: '#{name}' (names a timer of the module itself|cannot be)}) }
        end
      end

      context 'with the class absent' do
        let(:pre_condition) { "class { 'common::again': ensure => absent }" }

        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_exec('again-until-peers joined').with_refreshonly(true).without_unless }
      end

      {
        'check'    => ['', ' ', [], ['test', '-f', '/x'], [['/bin/true']], 7],
        'delta'    => [-1, 'soon'],
        'timeout'  => [0, '60', 4000],
        'max_runs' => [-1],
        'on_cap'   => ['stop'],
      }.each do |name, values|
        values.each do |value|
          context "with #{name} => #{value.inspect}" do
            let(:params) { super().merge(name => value) }

            it { is_expected.to compile.and_raise_error(%r{parameter '#{name}'}) }
          end
        end
      end
    end
  end
end
