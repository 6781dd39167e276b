# frozen_string_literal: true

# `rspec -r parse_once.rb`: each manifest, template and type is parsed once, not for every catalog that a spec compiles. Puppet does not change
# what its parser returns, and the text is a part of the key, so that a file that a spec writes again is parsed again.

require 'puppet'
require 'puppet/pops'

module ParseOnce
  PARSED = {} # rubocop:disable Style/MutableConstant

  def parse_string(text, path = nil)
    PARSED[[self.class, path, text]] ||= super
  end

  def parse_file(path)
    PARSED[[self.class, path, File.read(path)]] ||= super
  end
end

[Puppet::Pops::Parser::Parser, Puppet::Pops::Parser::EvaluatingParser].each { |parser| parser.prepend(ParseOnce) }
# rspec-puppet adds the module's lib for every catalog, and `require` looks into each.
RSpec.configure { |config| config.after { $LOAD_PATH.uniq! } }
