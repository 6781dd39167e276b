# frozen_string_literal: true

require 'spec_helper'

describe Puppet::Type.type(:again_prerun) do
  let(:dir) { Dir.mktmpdir('again-prerun') }
  let(:file) { "#{dir}/puppet.conf" }
  let(:program) { '/usr/local/bin/again-fleet' }
  let(:command) { ": again-fleet; test ! -x #{program} || exec #{program} slot" }

  before { allow(Puppet).to receive(:[]).and_call_original }
  before { allow(Puppet).to receive(:[]).with(:config).and_return(file) }
  after { FileUtils.remove_entry(dir) }

  # Applies it to this text, as a run does; what is there then.
  def applied(text, **params)
    File.write(file, text)
    resource = described_class.new(name: 'a slot', program: program, **params)
    wanted = resource[:ensure]
    change = resource.provider.exists? != (wanted == :present)
    resource.provider.public_send((wanted == :present) ? :create : :destroy) if change
    again = described_class.new(name: 'a slot', program: program, **params)
    expect(again.provider.exists?).to eq(wanted == :present)
    File.read(file)
  end

  def present(text, **params)
    applied(text, ensure: :present, **params)
  end

  def absent(text)
    applied(text, ensure: :absent)
  end

  it 'adds its line to the section of the agent, and leaves everything else as it is' do
    text = "# ours\n[main]\nserver = p\n\n[agent]\nruninterval = 1h\n\n[server]\nautosign = false\n"
    expect(present(text)).to eq("# ours\n[main]\nserver = p\n\n[agent]\nruninterval = 1h\nprerun_command = #{command}\n\n[server]\nautosign = false\n")
    expect(absent(present(text))).to eq(text)
  end

  it 'writes a line that Puppet reads as it was meant' do
    present("[main]\nserver = p\n")
    read = Puppet::Util::Execution.execute(['puppet', 'config', 'print', '--section', 'agent', '--config', file, 'prerun_command'])
    expect(read.chomp).to eq(command)
  end

  it 'makes a section, and a file' do
    expect(present("[main]\nserver = p\n")).to eq("[main]\nserver = p\n[agent]\nprerun_command = #{command}\n")
    expect(present('')).to eq("[agent]\nprerun_command = #{command}\n")
  end

  it 'follows the path of the program and of the settings' do
    text = present('', config: '/etc/fleet.toml')
    expect(text).to include("exec #{program} slot --config=/etc/fleet.toml\n")
    expect(present(text, program: '/usr/bin/again-fleet')).to eq("[agent]\nprerun_command = : again-fleet; test ! -x /usr/bin/again-fleet || exec /usr/bin/again-fleet slot\n")
    expect(present(text, required: true)).to eq("[agent]\nprerun_command = : again-fleet; exec #{program} slot\n")
  end

  it 'keeps owner and mode, and a link' do
    File.write("#{dir}/real", "[main]\n")
    File.chmod(0o640, "#{dir}/real")
    File.symlink('real', file)
    present("[main]\n")
    expect(File.symlink?(file)).to be(true)
    expect(File.stat(file).mode & 0o7777).to eq(0o640)
    expect(Dir.children(dir).sort).to eq(%w[puppet.conf real])
  end

  it 'takes its own line away where somebody else has one in [main], and no line that only looks alike' do
    others = "[main]\nprerun_command = /usr/local/bin/check\n"
    expect(absent("#{others}[agent]\nprerun_command = #{command}\n")).to eq("#{others}[agent]\n")
    own = "[agent]\nprerun_command = #{program} slot\n"
    expect(absent(own)).to eq(own)
    expect { present(own) }.to raise_error(Puppet::Error, %r{has a prerun_command already})
  end

  %w[agent main].each do |section|
    it "leaves what somebody else wants called, in [#{section}]" do
      text = "[#{section}]\nprerun_command = /usr/local/bin/check\n"
      expect { present(text) }.to raise_error(Puppet::Error, %r{has a prerun_command already \('/usr/local/bin/check'\): have it call 'again-fleet slot'})
      expect(File.read(file)).to eq(text)
      expect(absent(text)).to eq(text)
    end
  end

  it 'takes each path that Common::Again::Path is, and none that a shell reads in another way' do
    # Whoever has no slots declares it, too.
    at = '/opt/fleet@prod,1:2~x+é.toml'
    expect(described_class.new(name: 'a slot', ensure: :absent, program: at, config: at)[:config]).to eq(at)
    ['again-fleet', '/opt/a b', '/opt/$x', "/opt/a'b"].each do |path|
      expect { described_class.new(name: 'a slot', program: path) }.to raise_error(Puppet::Error, %r{not a path without quotes})
    end
    expect { described_class.new(name: 'a slot', ensure: :present) }.to raise_error(Puppet::Error, %r{no program})
  end
end
