# Keeps the bytecode of Ruby's and Puppet's files in the directory RIG_BYTECODE, for the next process: otherwise each run of Puppet compiles a
# thousand files, a third of its time. `load_iseq` is the hook of Ruby that bootsnap uses too; Ruby loads the file itself if it returns nil.
module RigBytecode
  def load_iseq(path)
    return unless path.start_with?('/usr/', '/opt/')

    build = "#{RUBY_VERSION}p#{RUBY_PATCHLEVEL}-#{RUBY_PLATFORM}"
    kept = "#{ENV['RIG_BYTECODE']}/#{build}-#{File.mtime(path).to_i}#{path.tr('/', '%')}"
    begin
      load_from_binary(File.binread(kept))
    rescue Errno::ENOENT
      compiled = compile_file(path)
      File.binwrite("#{kept}.#{Process.pid}", compiled.to_binary)
      File.rename("#{kept}.#{Process.pid}", kept)
      compiled
    end
  rescue SystemCallError, RuntimeError, SyntaxError
    nil
  end
end

if ENV['RIG_BYTECODE'] && defined?(RubyVM::InstructionSequence)
  RubyVM::InstructionSequence.singleton_class.prepend(RigBytecode)
end
