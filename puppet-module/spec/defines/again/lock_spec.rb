# frozen_string_literal: true

require 'spec_helper'

describe 'common::again::lock' do
  let(:node) { 'db1.example.com' }
  let(:title) { 'db-master' }
  let(:ssl) { %w[cert key ca crl].to_h { |name| [name, "/ssl/#{name}.pem"] } }
  let(:facts) { SYSTEMS['debian-12'].merge('again' => FACT, 'again_fleet' => { 'certname' => 'db1.example.com', 'paths' => ssl }) }
  let(:fleet) { "endpoints => ['etcd1.example.com'], accept => []" }
  let(:pre_condition) { "class { 'common::again::fleet': #{fleet} }" }
  let(:nodes) { %w[db1.example.com db2.example.com db3.example.com] }
  let(:params) { { 'candidates' => nodes } }
  let(:file) { catalogue.resources.find { |one| one.type == 'File' && one.title.end_with?('.toml') && one.title.include?('locks') } }

  context 'with candidates' do
    it { is_expected.to compile.with_all_deps }
    it { is_expected.to contain_class('common::again::fleet') }

    it 'writes a file of its own, and has it read' do
      is_expected.to contain_file('/etc/again-fleet-locks.d/db-master.toml')
        .with(ensure: 'file', owner: 'root', group: 'root', mode: '0644').that_notifies('Exec[again-fleet-rules]').that_requires('File[/etc/again-fleet-locks.d]')
      expect(file[:content]).to eq(<<~TOML)
        # Written by Puppet (common::again::lock): changes made here do not last.
        # binary: /usr/local/bin/again-fleet
        name = "db-master"
        candidates = ["db1.example.com", "db2.example.com", "db3.example.com"]
      TOML
    end
  end

  context 'with an order and another name' do
    let(:params) { { 'candidates' => nodes + nodes, 'prefer' => ['db2.example.com', 'db1.example.com'], 'lock' => 'db.master_2' } }

    it 'writes them' do
      expect(file.title).to eq('/etc/again-fleet-locks.d/db.master_2.toml')
      expect(file[:content].lines.drop(2).join).to eq(<<~TOML)
        name = "db.master_2"
        candidates = ["db1.example.com", "db2.example.com", "db3.example.com"]
        prefer = ["db2.example.com", "db1.example.com"]
      TOML
    end
  end

  # The example, on a node whose service says this.
  {
    'that holds it' => [{ 'is_mine' => true, 'holder' => 'db1.example.com', 'token' => 7 }, ['promote with token 7']],
    'that does not' => [{ 'is_mine' => false, 'holder' => 'db2.example.com', 'token' => 8 }, ['follow db2.example.com']],
    'that is not certain' => [{ 'is_mine' => false, 'why' => 'nobody holds it' }, []],
  }.each do |what, (lock, execs)|
    context "with the example on a node #{what}" do
      let(:pre_condition) { super() + File.read("#{ROOT}/examples/lock.pp") }
      let(:title) { 'another' }
      let(:facts) { super().merge('again_fleet' => { 'certname' => 'db1.example.com', 'paths' => ssl, 'locks' => { 'db-master' => lock } }) }

      it { is_expected.to compile.with_all_deps }
      it { expect(catalogue.resources.select { |one| one.type == 'Exec' && one.title =~ %r{promote|follow} }.map(&:title)).to eq(execs) }
    end
  end

  context 'with the fence of the example' do
    let(:dir) { Dir.mktmpdir('again-fence') }
    let(:fence) { "class { 'profile::db::fence': shared => '#{dir}', script => '#{dir}/with-token' }\n" }
    let(:pre_condition) { fence + super() + File.read("#{ROOT}/examples/lock.pp") }
    let(:title) { 'another' }
    let(:facts) do
      lock = { 'is_mine' => true, 'holder' => 'db1.example.com', 'token' => 7 }
      super().merge('again_fleet' => { 'certname' => 'db1.example.com', 'paths' => ssl, 'locks' => { 'db-master' => lock } })
    end
    let(:script) { "#{dir}/with-token" }
    let(:promote) { catalogue.resource('Exec[promote with token 7]') }

    def status(words)
      Puppet::Util::Execution.execute(words, failonfail: false).exitstatus
    end

    before { File.write(script, catalogue.resource("File[#{script}]")[:content]) }
    after { FileUtils.remove_entry(dir) }

    it 'takes nothing from a token that is older than another' do
      codes = [1, 3, 2, 3].map { |token| status(['sh', script, token.to_s, 'true']) }
      expect(codes).to eq([0, 0, 1, 0])
      expect(File.read("#{dir}/token")).to eq("3\n")
    end

    it 'says how the command ended, and leaves it no lock' do
      command = ['sh', script, '1', 'sh', '-c', 'test ! -e /proc/self/fd/9 && exit 5']
      expect(status(command)).to eq(5)
    end

    it 'is asked again for a token that is not noted yet' do
      words = promote[:unless].sub('/usr/local/sbin/db is-primary', 'true')
      codes = [6, 7].map { |token| File.write("#{dir}/token", "#{token}\n") && status(words) }
      expect(codes).to eq([1, 0])
    end
  end

  context 'when absent' do
    let(:params) { { 'candidates' => ['db9.example.com'], 'ensure' => 'absent' } }

    it { is_expected.to compile.with_all_deps }
    it { expect(file[:ensure].to_s).to eq('absent') }
  end

  context 'with the class absent' do
    let(:fleet) { 'ensure => absent' }

    it { is_expected.to compile.with_all_deps }
    it { expect(file).to be_nil }
    it { is_expected.to contain_file('/etc/again-fleet-locks.d').with_ensure('absent') }
  end

  context 'over NATS' do
    let(:fleet) { "#{super()}, backend => 'nats'" }

    it { is_expected.to compile.and_raise_error(%r{common::again::lock: 'db-master': locks need etcd: on NATS a key that is renewed loses its place}) }
  end

  {
    'without this node' => [{ 'candidates' => ['db2.example.com'] }, %r{the candidates do not name this node, db1.example.com}],
    'with an order of others' => [{ 'prefer' => ['db4.example.com'] }, %r{prefer names db4.example.com, which the candidates do not}],
  }.each do |what, (given, error)|
    context what do
      let(:params) { super().merge(given) }

      it { is_expected.to compile.and_raise_error(error) }
    end
  end

  ["two\nlines", 'a b', 'x' * 65, '../a'].each do |name|
    context "with the title #{name.inspect}" do
      let(:title) { name }

      it { is_expected.to compile.and_raise_error(%r{parameter 'lock'}) }
    end
  end

  {
    'candidates' => [[], 'db1', ['DB1'], ["a\n"], ['a/b'], ['x'] * 65],
    'prefer'     => ['db1', [7]],
    'ensure'     => ['running'],
  }.each do |name, values|
    values.each do |value|
      context "with #{name} => #{value.inspect[0, 40]}" do
        let(:params) { super().merge(name => value) }

        it { is_expected.to compile.and_raise_error(%r{parameter '#{name}'}) }
      end
    end
  end
end
